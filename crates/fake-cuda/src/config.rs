//! What the environment says about the devices. Read once, when the library is first called.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

/// The environment's word.
#[derive(Debug)]
pub(crate) struct Config {
    /// FAKE_CUDA_DEVICES
    pub(crate) devices: i32,
    /// FAKE_CUDA_MEMORY: bytes of each device.
    pub(crate) memory: usize,
    /// FAKE_CUDA_END_MS: how long the end takes.
    pub(crate) end: Duration,
    /// FAKE_CUDA_ALONE: calls about memory come one at a time.
    pub(crate) alone: bool,
    /// FAKE_CUDA_LAUNCH=ignored: kernels do nothing.
    pub(crate) ignores_kernels: bool,
    /// FAKE_CUDA_GRANULARITY: least multiple of sizes and addresses, a power of two of at least a page.
    pub(crate) granularity: usize,
    /// FAKE_CUDA_GRANULARITY_RECOMMENDED
    pub(crate) granularity_recommended: usize,
    /// FAKE_CUDA_MULTICAST_GRANULARITY
    pub(crate) multicast_granularity: usize,
    /// FAKE_CUDA_MULTICAST_GRANULARITY_RECOMMENDED
    pub(crate) multicast_granularity_recommended: usize,
    /// FAKE_CUDA_VERSION
    pub(crate) version: i32,
    /// FAKE_CUDA_NAME
    pub(crate) name: String,
    /// FAKE_CUDA_HOST_ACCESS
    pub(crate) host_access: bool,
    /// FAKE_CUDA_PEER_ACCESS
    pub(crate) peer_access: bool,
    /// FAKE_CUDA_ATTRIBUTE_number
    pub(crate) attributes: BTreeMap<u32, i32>,
    /// FAKE_CUDA_FABRIC
    pub(crate) fabric: Fabric,
    /// FAKE_CUDA_FAIL: (call, n-th, code).
    pub(crate) failures: Vec<(String, u64, u32)>,
}

/// Whether there are fabric handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    None,
    Works,
    /// They work, and no memory is exported by a descriptor.
    Only,
    /// The attribute says so, but no daemon permits it.
    Refused,
}

pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(Config::read);

const PREFIX: &str = "FAKE_CUDA_";

impl Config {
    fn read() -> Self {
        let page = rustix::param::page_size();
        let granularity = size("GRANULARITY", 2 << 20).max(page).next_power_of_two();
        let multicast = size("MULTICAST_GRANULARITY", granularity).max(page).next_power_of_two();
        Self {
            devices: number("DEVICES", 1),
            memory: size("MEMORY", 8 << 30),
            granularity,
            granularity_recommended: size("GRANULARITY_RECOMMENDED", granularity)
                .next_multiple_of(granularity),
            multicast_granularity: multicast,
            multicast_granularity_recommended: size("MULTICAST_GRANULARITY_RECOMMENDED", multicast)
                .next_multiple_of(multicast),
            version: number("VERSION", 12_040),
            name: text("NAME").unwrap_or_else(|| "Fake GPU".to_owned()),
            host_access: number("HOST_ACCESS", 1) != 0,
            peer_access: number("PEER_ACCESS", 1) != 0,
            attributes: attributes(),
            fabric: match text("FABRIC").as_deref() {
                Some("works") => Fabric::Works,
                Some("only") => Fabric::Only,
                Some("refused") => Fabric::Refused,
                _ => Fabric::None,
            },
            ignores_kernels: text("LAUNCH").is_some_and(|word| word == "ignored"),
            alone: number("ALONE", 0) != 0,
            end: Duration::from_millis(size("END_MS", 0) as u64),
            failures: text("FAIL").map(|list| failures(&list)).unwrap_or_default(),
        }
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(format!("{PREFIX}{name}")).ok()
}

fn number(name: &str, default: i32) -> i32 {
    text(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default)
}

fn size(name: &str, default: usize) -> usize {
    text(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default)
}

fn attributes() -> BTreeMap<u32, i32> {
    let one = |(name, value): (String, String)| {
        let number = name.strip_prefix(PREFIX)?.strip_prefix("ATTRIBUTE_")?.parse().ok()?;
        Some((number, value.trim().parse().ok()?))
    };
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter_map(one)
        .collect()
}

/// "cuMemMap:3:2,cuMemCreate:1:999"
fn failures(list: &str) -> Vec<(String, u64, u32)> {
    let one = |item: &str| {
        let mut parts = item.trim().split(':');
        let name = parts.next()?.to_owned();
        let (nth, code) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((name, nth, code))
    };
    list.split(',').filter_map(one).collect()
}
