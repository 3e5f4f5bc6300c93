//! Whether there is such a program, asked before anything starts.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Why a program cannot be launched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What a shell exits with in this case.
    pub(super) status: u8,
    pub(super) what: String,
}

/// Looks for the program where it will be looked for when it is started.
pub(super) fn check(program: &OsStr) -> Result<(), Refusal> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    check_in(program, &path)
}

/// What a shell exits with after such an error.
pub(super) fn exec_status(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

fn check_in(program: &OsStr, path: &OsStr) -> Result<(), Refusal> {
    let name = program.display();
    if program.as_encoded_bytes().contains(&b'/') {
        return check_file(Path::new(program));
    }
    let candidates: Vec<PathBuf> = env::split_paths(path)
        .map(|directory| directory.join(program))
        .filter(|file| file.is_file())
        .collect();
    match candidates.first() {
        _ if program.is_empty() => Err(not_found("the name of the program is empty".to_owned())),
        None => Err(not_found(format!(
            "`{name}` is in no directory of PATH: check the spelling, or give a path such as `./{name}`"
        ))),
        // The first one that can be executed is, wherever it is.
        Some(_) if candidates.iter().any(|file| check_file(file).is_ok()) => Ok(()),
        Some(first) => check_file(first),
    }
}

fn check_file(file: &Path) -> Result<(), Refusal> {
    let name = file.display();
    let no = |what| Err(Refusal { status: NOT_EXECUTABLE, what });
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(not_found(format!("there is no program `{name}`: check the path")))
        }
        Err(error) => no(format!("`{name}` cannot be executed: {error}")),
        Ok(of) if !of.is_file() => no(format!("`{name}` cannot be executed: it is no file")),
        Ok(_) => access(file, Access::EXEC_OK).or_else(|_| {
            no(format!("`{name}` may not be executed by this user: `chmod +x` makes a program of a file"))
        }),
    }
}

fn not_found(what: String) -> Refusal {
    Refusal { status: NOT_FOUND, what }
}

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_is_looked_for_as_it_will_be_when_it_starts() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        let make = |file: &Path, mode| {
            fs::write(file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::create_dir_all(first.join("directory")).unwrap();
        fs::create_dir(&second).unwrap();
        make(&first.join("plain"), 0o600);
        make(&first.join("both"), 0o600);
        make(&second.join("both"), 0o700);
        let path = env::join_paths([&first, &second]).unwrap();
        let check = |name: &str| check_in(OsStr::new(name), &path).map_err(|refusal| refusal.status);
        assert_eq!(check("both"), Ok(()));
        assert_eq!(check("plain"), Err(NOT_EXECUTABLE));
        assert_eq!(check("directory"), Err(NOT_FOUND));
        assert_eq!(check("nothing"), Err(NOT_FOUND));
        assert_eq!(check(""), Err(NOT_FOUND));
        let file = |name| check_in(first.join(name).as_os_str(), &path).map_err(|refusal| refusal.status);
        assert_eq!(file("plain"), Err(NOT_EXECUTABLE));
        assert_eq!(file("directory"), Err(NOT_EXECUTABLE));
        assert_eq!(file("nothing"), Err(NOT_FOUND));
        assert_eq!(file("../second/both"), Ok(()));
    }
}
