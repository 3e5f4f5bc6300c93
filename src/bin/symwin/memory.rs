//! How much memory there is, asked before it is taken.

use std::fs;
use std::path::Path;

use anyhow::bail;

use crate::size::show_about;

/// Refuses what would need more memory than there is. `what` needs it: `4 ranks x 8 windows x 4 MiB`.
pub(crate) fn check(what: &str, need_bytes: Option<u64>) -> anyhow::Result<()> {
    refuse_more(what, need_bytes, available(), "memory")
}

/// The same of a device, all of whose memory is taken to be free.
pub(crate) fn check_device(what: &str, need_bytes: Option<u64>, memory_bytes: u64) -> anyhow::Result<()> {
    refuse_more(what, need_bytes, Some(memory_bytes), "GPU memory")
}

fn refuse_more(
    what: &str,
    need_bytes: Option<u64>,
    available_bytes: Option<u64>,
    of: &str,
) -> anyhow::Result<()> {
    if need_bytes.is_some_and(|need| need <= available_bytes.unwrap_or(u64::MAX)) {
        return Ok(());
    }
    let need = need_bytes.map_or_else(|| "more than 2^64 bytes".to_owned(), show_about);
    let have = available_bytes.map_or_else(|| "less".to_owned(), show_about);
    bail!("{what} need {need} of {of}, of which {have} is available: ask for less, or free some")
}

/// Bytes that can be had now, of the machine and of the control group, whichever are fewer. `None` where the system
/// does not say.
fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text));
    machine.into_iter().chain(groups()).min()
}

fn meminfo(text: &str) -> Option<u64> {
    field(text, "MemAvailable:")?.checked_mul(1024)
}

/// What each control group above this process still allows.
fn groups() -> Vec<u64> {
    let Ok(text) = fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    root.join(path).ancestors().take_while(|group| group.starts_with(root)).filter_map(group).collect()
}

fn group(path: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(path.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Pages that only mirror files are given up when memory is short.
    let cache = read("memory.stat").and_then(|stat| field(&stat, "inactive_file")).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    words.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let text = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(meminfo(text), Some(22_000_000 * 1024));
        assert_eq!(meminfo("MemTotal: 1 kB\n"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn more_than_there_is_is_refused_with_both_numbers() {
        check("nothing", Some(0)).unwrap();
        let refused = check("4 ranks", Some(1 << 60)).unwrap_err().to_string();
        assert!(refused.starts_with("4 ranks need 1048576.0 TiB of memory, of which"), "{refused}");
        assert!(check("4 ranks", None).unwrap_err().to_string().contains("more than 2^64"));
    }
}
