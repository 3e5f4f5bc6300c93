//! What the machine and the process may use: memory and descriptors.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Where the limits of this process are read.
#[derive(Debug)]
pub(super) struct Limits {
    /// The memory control groups that hold this process, innermost first.
    groups: Vec<PathBuf>,
}

impl Limits {
    /// Finds the process's control groups (version 2); none where there are none.
    pub(super) fn of_this_process() -> Self {
        let table = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { groups: group_folders(&table, Path::new("/sys/fs/cgroup")) }
    }

    /// All memory that this process may ever use, in bytes.
    pub(super) fn total(&self) -> u64 {
        let machine = rustix::system::sysinfo();
        // The field's width differs between machines.
        #[allow(clippy::useless_conversion, reason = "the field's type differs between machines")]
        let units = u64::from(machine.totalram);
        let machine = units.saturating_mul(u64::from(machine.mem_unit));
        self.groups.iter().filter_map(|group| limit(group)).fold(machine, u64::min)
    }

    /// Memory that can be had now, in bytes; as much as there is where nothing is known.
    ///
    /// A look before the leap: another process may take it meanwhile. Without it the kernel would rather kill
    /// a process of the group than refuse.
    pub(super) fn available(&self) -> u64 {
        let machine = fs::read_to_string("/proc/meminfo").ok();
        let machine = machine.and_then(|text| mem_available(&text)).unwrap_or(u64::MAX);
        self.groups.iter().filter_map(|group| room(group)).fold(machine, u64::min)
    }
}

/// The process's soft limit of descriptors.
pub(super) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The folders of the group named in `/proc/self/cgroup` and of all its parents, innermost first.
fn group_folders(table: &str, mount: &Path) -> Vec<PathBuf> {
    let Some(path) = table.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    // A path out of this namespace's root starts with "..": its groups are not to be seen.
    let inner = if path.starts_with("..") { mount.to_owned() } else { mount.join(path) };
    inner
        .ancestors()
        .take_while(|folder| folder.starts_with(mount))
        .filter(|folder| folder.join("memory.max").exists())
        .map(Path::to_owned)
        .collect()
}

fn limit(group: &Path) -> Option<u64> {
    number(&group.join("memory.max"))
}

/// Bytes left below the group's limit; cached file pages that are not in use count as free.
fn room(group: &Path) -> Option<u64> {
    let limit = limit(group)?;
    let used = number(&group.join("memory.current"))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

/// The file's number; none if it has none ("max").
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:  100 kB\nMemAvailable:     7 kB\nBuffers: 1 kB\n";
        assert_eq!(mem_available(text), Some(7 * 1024));
        assert_eq!(mem_available("MemTotal: 100 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_tightest_group_bounds_total_and_available() {
        let mount = tempfile::tempdir().unwrap();
        let inner = mount.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(mount.path().join("a/memory.max"), "8192\n").unwrap();
        fs::write(mount.path().join("a/memory.current"), "6000\n").unwrap();
        fs::write(mount.path().join("a/memory.stat"), "anon 1\ninactive_file 1000\n").unwrap();
        let groups = group_folders("1:cpu:/x\n0::/a/b\n", mount.path());
        assert_eq!(groups, [inner, mount.path().join("a")]);
        let limits = Limits { groups };
        assert_eq!(limits.total(), 8192);
        assert_eq!(limits.available(), 8192 - 5000);
    }

    #[test]
    fn without_groups_nothing_but_the_machine_bounds() {
        assert!(group_folders("", Path::new("/sys/fs/cgroup")).is_empty());
        let limits = Limits { groups: Vec::new() };
        assert!(limits.total() >= limits.available());
    }
}
