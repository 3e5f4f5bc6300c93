//! The output file: whole or untouched.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use rustix::fs::{Access, access};

/// A file that will be there as a whole, or not. Until [`Output::commit`] only a temporary file beside it is touched,
/// and that goes with this value.
#[derive(Debug)]
pub(crate) struct Output {
    target: PathBuf,
    temporary: PathBuf,
}

impl Output {
    /// Checks that the file can be made, and makes nothing yet.
    pub(crate) fn new(target: &Path) -> anyhow::Result<Self> {
        Self::beside(target).with_context(|| format!("--output {}", target.display()))
    }

    fn beside(target: &Path) -> anyhow::Result<Self> {
        ensure!(target.file_name().is_some(), "it names no file");
        // Replacing a device or a pipe by a file is not what anyone means.
        if let Ok(there) = fs::symlink_metadata(target) {
            ensure!(there.is_file() || there.is_symlink(), "it exists and is no regular file");
        }
        // A link is followed, so that the file which it points to is replaced and not the link.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        ensure!(!target.is_dir(), "it is a directory");
        let directory = directory(&target);
        let found =
            fs::metadata(&directory).with_context(|| format!("its directory {}", directory.display()))?;
        ensure!(found.is_dir(), "{} is no directory", directory.display());
        access(&directory, Access::WRITE_OK | Access::EXEC_OK)
            .with_context(|| format!("nothing can be written in {}", directory.display()))?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let temporary = format!(".symwin.{}.{nanos:x}.tmp", process::id());
        Ok(Self { temporary: directory.join(temporary), target })
    }

    /// Where the contents go. Whoever writes it makes it anew, and brings it to the disk.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Puts the temporary file in the place of the output.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let shown = self.target.display();
        fs::rename(&self.temporary, &self.target).with_context(|| format!("putting {shown} in its place"))?;
        // The name is on the disk once its directory is.
        let directory = directory(&self.target);
        File::open(&directory)
            .and_then(|directory| directory.sync_all())
            .with_context(|| directory.display().to_string())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Nothing is there after a commit, nor before rank 0 came to writing.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn directory(target: &Path) -> PathBuf {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_there_as_a_whole_or_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("out.npy");
        fs::write(&target, "old").unwrap();
        let output = Output::new(&target).unwrap();
        fs::write(output.temporary(), "half").unwrap();
        drop(output);
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

        let output = Output::new(&target).unwrap();
        fs::write(output.temporary(), "whole").unwrap();
        output.commit().unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "whole");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_followed_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link.npy"), directory.path().join("target.npy"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink("target.npy", &link).unwrap();
        let output = Output::new(&link).unwrap();
        fs::write(output.temporary(), "new").unwrap();
        output.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    }

    #[test]
    fn what_cannot_be_an_output_is_refused_before_any_work() {
        for path in ["/dev/null", "/proc", "/no/such/directory/out.npy", "/", "/dev/null/out.npy"] {
            let refused = format!("{:#}", Output::new(Path::new(path)).unwrap_err());
            assert!(refused.contains(path), "{refused}");
        }
    }
}
