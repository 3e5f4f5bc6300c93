//! Puts the library into a folder under the name that programs look for, without the entry points that a test wants
//! missing: `fake-cuda-install FOLDER [--without NAME]...`. The library is the one beside this program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    match install() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ =
                io::Write::write_all(&mut io::stderr(), format!("fake-cuda-install: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn install() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let usage = || io::Error::other("usage: fake-cuda-install FOLDER [--without NAME]...");
    let folder = PathBuf::from(arguments.next().ok_or_else(usage)?);
    let mut without = Vec::new();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--without", Some(name)) => without.push(name),
            _ => return Err(usage()),
        }
    }
    let library = env::current_exe()?.with_file_name("libfake_cuda.so");
    let mut bytes =
        fs::read(&library).map_err(|error| io::Error::other(format!("{}: {error}", library.display())))?;
    for name in without {
        take_away(&mut bytes, &name)?;
    }
    fs::create_dir_all(&folder)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        replace(&folder, name, &bytes)?;
    }
    Ok(())
}

/// Writes beside and renames: a process that has the old file mapped keeps it whole.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = folder.join(format!(".{name}.{}", std::process::id()));
    fs::write(&fresh, bytes)?;
    fs::rename(fresh, folder.join(name))
}

/// Renames a symbol in the tables of names, whose entries have a zero on both sides: nobody finds it any more.
fn take_away(bytes: &mut [u8], name: &str) -> io::Result<()> {
    let entry = [b"\0", name.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = bytes
        .windows(entry.len())
        .enumerate()
        .filter(|(_, window)| *window == entry)
        .map(|(at, _)| at)
        .collect();
    if found.is_empty() {
        return Err(io::Error::other(format!("the library has no {name}")));
    }
    for at in found {
        bytes[at + 1] = b'-';
    }
    Ok(())
}
