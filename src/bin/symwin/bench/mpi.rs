//! Open MPI and MPICH, where they are installed: a C program is compiled with each and launched with as many ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::foreign;
use super::stats::Figure;

/// The MPIs of this machine.
#[derive(Debug)]
pub(crate) struct Mpis {
    pub(crate) found: Vec<Mpi>,
    /// Name and why it is not there.
    absent: Vec<(&'static str, String)>,
    /// Where the programs are. It goes with this.
    _directory: Option<TempDir>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Mpi {
    pub(crate) name: &'static str,
    launch: Vec<String>,
    program: PathBuf,
}

impl Mpis {
    /// None at all.
    pub(crate) fn none() -> Self {
        Self { found: Vec::new(), absent: Vec::new(), _directory: None }
    }

    /// Looks for them and compiles. What is not there or does not compile is said and no error.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("a directory for the MPI programs")?;
        let mut mpis = Self { _directory: None, ..Self::none() };
        for kind in KINDS {
            match kind.compile(&directory) {
                Ok(mpi) => mpis.found.push(mpi),
                Err(why) => mpis.absent.push((kind.name, format!("{why:#}"))),
            }
        }
        Ok(Self { _directory: Some(directory), ..mpis })
    }

    /// Microseconds of each MPI's samples, or why there are none, of those that are not there too.
    pub(crate) fn figures(&self, samples: &MpiSamples) -> MpiFigures {
        let measured = samples.iter().map(|(name, samples)| (*name, figure(samples)));
        measured.chain(self.absent.iter().map(|(name, why)| (*name, Err(why.clone())))).collect()
    }
}

fn figure(samples: &anyhow::Result<Vec<f64>>) -> Result<Figure, String> {
    let samples = samples.as_ref().map_err(|why| format!("{why:#}"))?;
    let figure = Figure::new(samples.iter().copied()).ok_or("it took no sample in time")?;
    Ok(figure.scaled(1e-3))
}

impl Mpi {
    /// Runs the program with its arguments as so many ranks, and adds what it says.
    pub(crate) fn add(&self, all: &mut MpiSamples, ranks: u32, args: &[String]) {
        let all = all.entry(self.name).or_insert_with(|| Ok(Vec::new()));
        // One that has failed is not tried again.
        let Ok(samples) = all else { return };
        match self.samples(ranks, args) {
            Ok(more) => samples.extend(more),
            Err(error) => *all = Err(error),
        }
    }

    fn samples(&self, ranks: u32, args: &[String]) -> anyhow::Result<Vec<f64>> {
        let mut command = self.launch.clone();
        command.extend(["-np".to_owned(), ranks.to_string(), self.program.to_string_lossy().into_owned()]);
        command.extend_from_slice(args);
        let said = foreign::run(command, false, LIMIT).with_context(|| self.name)?;
        let samples = said.lines().map(|line| line.trim().parse()).collect::<Result<_, _>>();
        samples.with_context(|| format!("{} says something else than numbers", self.name))
    }
}

/// What each MPI says, by name: nanoseconds for each repetition, of each sample; or why there are none.
pub(crate) type MpiSamples = BTreeMap<&'static str, anyhow::Result<Vec<f64>>>;

/// By name.
pub(crate) type MpiFigures = Vec<(&'static str, Result<Figure, String>)>;

/// How an MPI is called.
struct Kind {
    name: &'static str,
    /// Compiler and launcher: where several MPIs are installed, and where there is only one.
    calls: [(&'static str, &'static str); 2],
    /// Words of which its launcher says one with its version.
    signs: [&'static str; 2],
    args: &'static [&'static str],
}

impl Kind {
    fn compile(&self, directory: &TempDir) -> anyhow::Result<Mpi> {
        let is_this = |launcher: &&(&str, &str)| {
            let version = Command::new(launcher.1).arg("--version").stdin(Stdio::null()).output();
            let said = version.map(|version| String::from_utf8_lossy(&version.stdout).into_owned());
            said.is_ok_and(|said| self.signs.iter().any(|sign| said.contains(sign)))
        };
        let called = self.calls.iter().find(is_this);
        let (compiler, launcher) = called.with_context(|| format!("no {} is installed", self.calls[0].0))?;
        let source = directory.path().join("bench.c");
        fs::write(&source, SOURCE)?;
        let program = directory.path().join(compiler);
        let mut compile = Command::new(compiler);
        compile.arg("-O2").arg("-o").arg(&program).arg(&source).stdin(Stdio::null());
        let said = compile.output().with_context(|| format!("no {compiler} is installed"))?;
        let errors = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "{compiler} failed: {}", errors.lines().next().unwrap_or_default());
        let args = self.args.iter().map(|arg| (*arg).to_owned());
        let launch = [(*launcher).to_owned()].into_iter().chain(args).collect();
        Ok(Mpi { name: self.name, launch, program })
    }
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "Open MPI",
        calls: [("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")],
        signs: ["Open MPI", "OpenRTE"],
        args: &["--allow-run-as-root", "--oversubscribe"],
    },
    Kind {
        name: "MPICH",
        calls: [("mpicc.mpich", "mpiexec.mpich"), ("mpicc", "mpiexec")],
        signs: ["HYDRA", "MPICH"],
        args: &[],
    },
];

const SOURCE: &str = include_str!("../../../../benches/mpi/bench.c");
/// How long a launch may take. The program takes no further sample long before that.
const LIMIT: Duration = Duration::from_secs(60);
