//! Files that cannot be reduced: an error that names them, and an output that is as it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use crate::arrays::reduce;
use crate::npy::{Form, file, header, inputs};
use crate::program::{fails, ok};

const ROW: Form = Form { order: '<', fortran: "False", shape: "(6,)" };

fn good() -> Vec<u8> {
    file(ROW, &[1.0_f32; 6])
}

/// Runs over a good file and this one, and checks that the error has all parts, as threads and as processes, with
/// and without an output that was there before.
fn refused(bytes: &[u8], parts: &[&str]) {
    let directory = tempdir().unwrap();
    let inputs = inputs(directory.path(), &[good(), bytes.to_vec()]);
    refused_in(&directory, &inputs, parts);
}

fn refused_in(directory: &TempDir, inputs: &[PathBuf], parts: &[&str]) {
    let output = directory.path().join("out.npy");
    let before = entries(directory.path());
    for how in [&[][..], &["--procs"]] {
        let said = fails(&mut reduce("sum", how, inputs, &output), 1);
        for part in parts {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
        assert_eq!(entries(directory.path()), before, "nothing is left behind");
    }
    fs::write(&output, "precious").unwrap();
    fails(&mut reduce("sum", &[], inputs, &output), 1);
    assert_eq!(fs::read_to_string(&output).unwrap(), "precious");
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

#[test]
fn arrays_of_different_shape() {
    let other = file(Form { shape: "(2, 3)", ..ROW }, &[1.0_f32; 6]);
    refused(&other, &["differ in shape", "r0.npy has (6,)", "r1.npy has (2, 3)"]);
}

#[test]
fn arrays_of_different_type() {
    refused(&file(ROW, &[1_i32; 6]), &["differ in type", "r0.npy has <f4", "r1.npy has <i4"]);
}

#[test]
fn arrays_of_different_order() {
    let directory = tempdir().unwrap();
    let c = file(Form { shape: "(2, 3)", ..ROW }, &[1.0_f32; 6]);
    let fortran = file(Form { shape: "(2, 3)", fortran: "True", ..ROW }, &[1.0_f32; 6]);
    let inputs = inputs(directory.path(), &[c, fortran]);
    refused_in(&directory, &inputs, &["differ in order", "r0.npy has C order", "r1.npy has Fortran order"]);
}

#[test]
fn files_that_are_missing_or_no_files() {
    let directory = tempdir().unwrap();
    let good = inputs(directory.path(), &[good()]).remove(0);
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("a_directory.npy")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("a_pipe.npy"), 0o600.into()).unwrap();
    let cases = [
        ("missing.npy", "No such file"),
        ("a_directory.npy", "no regular file"),
        ("a_pipe.npy", "no regular file"),
        ("r0.npy/inside.npy", "Not a directory"),
    ];
    for (name, why) in cases {
        let _ = fs::remove_file(path("out.npy"));
        refused_in(&directory, &[good.clone(), path(name)], &[name, why]);
    }
}

#[test]
fn files_that_are_cut_off_anywhere() {
    let whole = good();
    refused(&whole[..whole.len() - 1], &["r1.npy", "cut off", "151 bytes", "152"]);
    refused(&whole[..128], &["r1.npy", "cut off"]);
    for end in [0, 5, 7, 9, 60, 127] {
        refused(&whole[..end], &["r1.npy", "ends within its header"]);
    }
}

#[test]
fn files_that_go_on_behind_their_array() {
    refused(&[good(), vec![0]].concat(), &["r1.npy", "goes on behind its array", "153", "152"]);
}

#[test]
fn files_that_are_malformed() {
    refused(b"PK\x03\x04 this is an .npz file", &["r1.npy", "magic"]);
    refused(&[b"\x93NUMPY\x07\x00".as_slice(), &[0; 100]].concat(), &["r1.npy", "version 7.0"]);
    refused(&header("'<f4'", "Perhaps", "(6,)"), &["r1.npy", "Perhaps"]);
    refused(&header("'<f4'", "False", "6"), &["r1.npy", "`(`"]);
    refused(&header("'<f4'", "False", "(-6,)"), &["r1.npy", "-6"]);
    refused(&header("'<f4'", "False", "(6,), 'shape': (6,)"), &["r1.npy", "twice"]);
    refused(
        &header("'<f4'", "False", "(4294967296, 4294967296)"),
        &["r1.npy", "more bytes than can be counted"],
    );
}

#[test]
fn types_that_are_not_supported() {
    for descr in ["'<c8'", "'<u4'", "'|b1'", "'|O'", "'<i2'", "[('a', '<f4')]"] {
        refused(&header(descr, "False", "(6,)"), &["r1.npy", "supported", "f2, f4, f8, i4, i8 and u1"]);
    }
}

#[test]
fn more_than_memory_holds_is_refused_before_it_is_read() {
    let directory = tempdir().unwrap();
    let inputs: Vec<_> = (0..2)
        .map(|rank| {
            let path = directory.path().join(format!("r{rank}.npy"));
            // 4 TiB of nothing: the file is sparse.
            let header = header("'<f4'", "False", "(1099511627776,)");
            fs::write(&path, &header).unwrap();
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(header.len() as u64 + (4 << 40))
                .unwrap();
            path
        })
        .collect();
    refused_in(&directory, &inputs, &["2 arrays of 4 TiB need", "of memory"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let directory = tempdir().unwrap();
    let inputs = inputs(directory.path(), &[good(), good()]);
    for output in ["/no/such/directory/out.npy", "/dev/null", "/"] {
        let said = fails(&mut reduce("sum", &[], &inputs, Path::new(output)), 1);
        assert!(said.contains(output), "{said}");
    }
}

#[test]
fn one_output_needs_one_lsa_team() {
    let directory = tempdir().unwrap();
    let inputs = inputs(directory.path(), &[good(), good()]);
    let output = directory.path().join("out.npy");
    for how in [&[][..], &["--procs"]] {
        let said = fails(reduce("sum", how, &inputs, &output).env("SYMWIN_LSA_TEAM_SIZE", "1"), 1);
        assert!(said.contains("unset SYMWIN_LSA_TEAM_SIZE"), "{said}");
        assert!(!output.exists());
    }
    ok(reduce("sum", &[], &inputs, &output).env("SYMWIN_LSA_TEAM_SIZE", "2"));
}
