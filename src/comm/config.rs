//! How a communicator is made.

use std::env;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::Runtime;
use crate::device::cores;
use crate::devr::zoo::Bugs;
use crate::driver::Driver;
use crate::error::{Misuse, Result};
use crate::ids::Rank;

/// Makes the device of a rank.
pub(crate) type Devices = Arc<dyn Fn(Rank) -> Result<Arc<dyn Driver>> + Send + Sync>;

/// How a communicator is made. Everything has a default; what is set in the environment is taken by
/// [`Config::from_env`].
///
/// | method | variable | default |
/// | --- | --- | --- |
/// | [`Config::name`] | | `world` |
/// | [`Config::stride`] | `SYMWIN_STRIDE`, bytes | the largest device memory of any rank; always rounded up to 4 GiB |
/// | [`Config::lsa_team_size`] | `SYMWIN_LSA_TEAM_SIZE` | all ranks of the host |
/// | [`Config::deadline`] | `SYMWIN_DEADLINE`, seconds | 60 s |
/// | [`Config::bootstrap_deadline`] | `SYMWIN_BOOTSTRAP_DEADLINE`, seconds | 120 s |
/// | [`Config::workers`] | `SYMWIN_WORKERS` | the machine's cores |
#[derive(Clone)]
#[must_use]
pub struct Config {
    pub(crate) name: String,
    pub(crate) stride: Option<u64>,
    pub(crate) lsa_team_size: Option<u32>,
    pub(crate) deadline: Duration,
    pub(crate) bootstrap_deadline: Duration,
    pub(crate) workers: usize,
    pub(crate) runtime: Option<Runtime>,
    pub(crate) devices: Option<Devices>,
    /// What a simulation has planted: nothing in normal builds.
    pub(crate) bugs: Bugs,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "world".to_owned(),
            stride: None,
            lsa_team_size: None,
            deadline: Duration::from_secs(60),
            bootstrap_deadline: Duration::from_secs(120),
            workers: cores(),
            runtime: None,
            devices: None,
            bugs: Bugs::default(),
        }
    }
}

impl Config {
    /// The defaults, whatever the environment says.
    pub fn new() -> Self {
        Self::default()
    }

    /// The defaults, and what the environment sets of them.
    ///
    /// # Errors
    /// [`Misuse::BadSetting`] names a variable that is set to something else than a number in range.
    pub fn from_env() -> Result<Self> {
        let mut config = Self::default();
        if let Some(bytes) = variable("SYMWIN_STRIDE", "a number of bytes, 0 for the default")? {
            config.stride = Some(bytes);
        }
        if let Some(ranks) = variable::<NonZeroU32>("SYMWIN_LSA_TEAM_SIZE", "a number of ranks, at least 1")?
        {
            config.lsa_team_size = Some(ranks.get());
        }
        if let Some(seconds) = seconds("SYMWIN_DEADLINE")? {
            config.deadline = seconds;
        }
        if let Some(seconds) = seconds("SYMWIN_BOOTSTRAP_DEADLINE")? {
            config.bootstrap_deadline = seconds;
        }
        if let Some(workers) = variable::<NonZeroUsize>("SYMWIN_WORKERS", "a number of threads, at least 1")?
        {
            config.workers = workers.get();
        }
        Ok(config)
    }

    /// Sets the name, for messages and as part of the communicator's identity.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the stride in bytes; it is rounded up to 4 GiB. It bounds what can be registered at a time.
    pub fn stride(mut self, bytes: u64) -> Self {
        self.stride = Some(bytes);
        self
    }

    /// Sets how many consecutive ranks are in an LSA team; it divides the number of ranks.
    pub fn lsa_team_size(mut self, ranks: u32) -> Self {
        self.lsa_team_size = Some(ranks);
        self
    }

    /// Sets the longest that one operation may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the longest that making a communicator may take.
    pub fn bootstrap_deadline(mut self, deadline: Duration) -> Self {
        self.bootstrap_deadline = deadline;
        self
    }

    /// Sets how many worker threads run the actors; one is enough for any number of communicators.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Shares a runtime with other communicators instead of starting one.
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets the device of each rank. The default is one host device for all ranks of a process.
    pub fn devices(
        mut self,
        device: impl Fn(Rank) -> Result<Arc<dyn Driver>> + Send + Sync + 'static,
    ) -> Self {
        self.devices = Some(Arc::new(device));
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .field("stride", &self.stride)
            .field("lsa_team_size", &self.lsa_team_size)
            .field("deadline", &self.deadline)
            .field("bootstrap_deadline", &self.bootstrap_deadline)
            .field("workers", &self.workers)
            .field("own_runtime", &self.runtime.is_none())
            .field("own_devices", &self.devices.is_none())
            .finish()
    }
}

/// A variable of the environment as a value, `None` if it is not set.
pub(crate) fn variable<T: FromStr>(name: &str, why: &str) -> Result<Option<T>> {
    let Some(value) = env::var_os(name) else { return Ok(None) };
    let value = value.to_string_lossy().into_owned();
    match value.trim().parse() {
        Ok(parsed) => Ok(Some(parsed)),
        Err(_) => Err(Misuse::BadSetting { name: name.to_owned(), value, why: why.to_owned() }.into()),
    }
}

fn seconds(name: &str) -> Result<Option<Duration>> {
    let why = "a number of seconds above 0, fractions allowed";
    let Some(seconds) = variable::<f64>(name, why)? else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => {
            Err(Misuse::BadSetting { name: name.to_owned(), value: seconds.to_string(), why: why.to_owned() }
                .into())
        }
    }
}
