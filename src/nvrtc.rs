//! NVIDIA's run-time compiler: kernels from text, with symwin's header in memory. It needs no GPU and no driver.
//!
//! The library is looked for when it is first wanted: the file that `SYMWIN_NVRTC` names and no other, or else
//! `libnvrtc.so.13`, `libnvrtc.so.12`, `libnvrtc.so` where the system's loader finds them. It comes with the CUDA
//! toolkit, or alone: `pip install nvidia-cuda-nvrtc-cu12`. That it is not there is an error and no panic.
//!
//! Compile for the device at hand (`sm_90`) and load the `cubin`: a driver may refuse PTX of a newer toolkit than
//! itself, but takes a cubin of any toolkit of its own CUDA's major version.
//!
//! ```no_run
//! use symwin::nvrtc::{self, Options};
//!
//! let source = r#"
//!     #include <symwin.cuh>
//!     extern "C" __global__ void arrive(symwin::DevComm comm) {
//!         symwin::LsaBarrier<symwin::Cta> barrier(symwin::Cta(), comm, blockIdx.x);
//!         barrier.sync();
//!     }
//! "#;
//! let compiled = nvrtc::compile(source, "arrive.cu", &Options::new("sm_90"))?;
//! assert!(compiled.cubin.is_some());
//! # Ok::<(), symwin::nvrtc::NvrtcError>(())
//! ```
#![allow(unsafe_code, reason = "NVRTC is a C library, which is found at run time")]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use crate::device::header::{HEADER, HEADER_NAME};

/// The variable that names the library's file.
pub const VARIABLE: &str = "SYMWIN_NVRTC";

/// Where the library is looked for without it, in this order.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Why a kernel was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// A call that should not fail did.
    #[error("{function} of NVRTC returned {code} ({text})")]
    Call {
        /// The function.
        function: &'static str,
        /// What it returned.
        code: i32,
        /// What NVRTC says about that.
        text: String,
    },
    /// The source does not compile.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The source's name.
        name: String,
        /// What it was compiled for.
        arch: String,
        /// What the compiler says, with lines.
        log: String,
    },
    /// A library was found that is no NVRTC, or one older than CUDA 11.1.
    #[error("{path} has no {symbol}: it is no NVRTC or too old; take one of CUDA 12 or 13")]
    Incomplete {
        /// The library.
        path: String,
        /// What it lacks.
        symbol: &'static str,
    },
    /// What is to be compiled cannot be handed to a C library, or is for no known kind of architecture.
    #[error("{what}")]
    Input {
        /// What is wrong, and what would be right.
        what: String,
    },
    /// There is no library.
    #[error(
        "NVRTC was not found ({}); install it (pip install nvidia-cuda-nvrtc-cu12), or set SYMWIN_NVRTC to \
         the path of libnvrtc.so",
        tried.join("; ")
    )]
    Missing {
        /// What was tried, and what the loader said.
        tried: Vec<String>,
    },
}

/// How a source is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What for: `sm_90` gives a cubin (and PTX), `compute_90` PTX alone.
    pub arch: String,
    /// Macros and their values.
    pub defines: Vec<(String, String)>,
    /// Other options as NVRTC takes them.
    pub extra: Vec<String>,
    /// Names of kernels in C++, such as `scale<float>`, whose names in the binary are wanted.
    pub names: Vec<String>,
    /// Headers in memory besides symwin's own: the name that the source includes, and the text.
    pub headers: Vec<(String, String)>,
}

impl Options {
    /// For an architecture, and nothing else.
    #[must_use]
    pub fn new(arch: &str) -> Self {
        Self {
            arch: arch.to_owned(),
            defines: Vec::new(),
            extra: Vec::new(),
            names: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// With one macro more.
    #[must_use]
    pub fn define(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.defines.push((name.to_owned(), value.to_string()));
        self
    }

    /// With one option more.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.extra.push(option.to_owned());
        self
    }

    /// With one kernel more whose name in the binary is wanted.
    #[must_use]
    pub fn name(mut self, expression: &str) -> Self {
        self.names.push(expression.to_owned());
        self
    }

    /// With one header more.
    #[must_use]
    pub fn header(mut self, name: &str, text: &str) -> Self {
        self.headers.push((name.to_owned(), text.to_owned()));
        self
    }

    fn arguments(&self) -> Result<Vec<CString>, NvrtcError> {
        let number = self.arch.strip_prefix("sm_").or_else(|| self.arch.strip_prefix("compute_"));
        if !number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit())) {
            let what = format!("no architecture: `{}`; say sm_90 for a cubin, compute_90 for PTX", self.arch);
            return Err(NvrtcError::Input { what });
        }
        let arch = format!("--gpu-architecture={}", self.arch);
        let defines = self.defines.iter().map(|(name, value)| format!("--define-macro={name}={value}"));
        [arch].into_iter().chain(defines).chain(self.extra.iter().cloned()).map(text).collect()
    }
}

/// What came of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compiled {
    /// The binary for one architecture; `None` where PTX alone was asked for.
    pub cubin: Option<Vec<u8>>,
    /// The code for any later architecture.
    pub ptx: String,
    /// Warnings.
    pub log: String,
    /// For each of [`Options::names`], in their order, its name in the binary.
    pub names: Vec<String>,
}

/// The library.
pub struct Nvrtc {
    /// Which file it is.
    path: String,
    functions: Functions,
    /// Keeps what the functions point to. Never unloaded while this lives.
    _library: Library,
}

type Handle = *mut c_void;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// What is called: unchanged since CUDA 11.1.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    log_size: Size,
    log: Get,
    ptx_size: Size,
    ptx: Get,
    cubin_size: Size,
    cubin: Get,
    add_name: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    lowered_name: unsafe extern "C" fn(Handle, *const c_char, *mut *const c_char) -> c_int,
}

/// Compiles with the library that is found the first time; `<symwin.cuh>` can be included.
///
/// # Errors
/// As [`Nvrtc::load`], each time anew until one is found, and [`Nvrtc::compile`].
pub fn compile(source: &str, name: &str, options: &Options) -> Result<Compiled, NvrtcError> {
    static FOUND: OnceLock<Nvrtc> = OnceLock::new();
    let nvrtc = match FOUND.get() {
        Some(nvrtc) => nvrtc,
        None => {
            let loaded = Nvrtc::load()?;
            FOUND.get_or_init(|| loaded)
        }
    };
    nvrtc.compile(source, name, options)
}

impl Nvrtc {
    /// Looks for the library and loads it.
    ///
    /// # Errors
    /// `Missing` if there is none, `Incomplete` if what was found is something else.
    pub fn load() -> Result<Self, NvrtcError> {
        Self::load_from(std::env::var_os(VARIABLE).filter(|path| !path.is_empty()))
    }

    fn load_from(only: Option<OsString>) -> Result<Self, NvrtcError> {
        let names = only.map_or_else(|| NAMES.map(OsString::from).to_vec(), |path| vec![path]);
        let mut tried = Vec::with_capacity(names.len());
        for name in names {
            let path = name.to_string_lossy().into_owned();
            // SAFETY: what NVRTC does when it is loaded is to set up its own data; who sets the variable vouches for
            // the file that it names.
            match unsafe { Library::new(&name) } {
                Ok(library) => return Self::of(library, path),
                Err(error) => tried.push(format!("{path}: {error}")),
            }
        }
        Err(NvrtcError::Missing { tried })
    }

    fn of(library: Library, path: String) -> Result<Self, NvrtcError> {
        let of = Symbols { library: &library, path: &path };
        let functions = Functions {
            // SAFETY: this is the function's type in nvrtc.h.
            version: unsafe { of.find("nvrtcVersion") }?,
            // SAFETY: as above.
            error_string: unsafe { of.find("nvrtcGetErrorString") }?,
            // SAFETY: as above.
            create: unsafe { of.find("nvrtcCreateProgram") }?,
            // SAFETY: as above.
            destroy: unsafe { of.find("nvrtcDestroyProgram") }?,
            // SAFETY: as above.
            compile: unsafe { of.find("nvrtcCompileProgram") }?,
            // SAFETY: as above.
            log_size: unsafe { of.find("nvrtcGetProgramLogSize") }?,
            // SAFETY: as above.
            log: unsafe { of.find("nvrtcGetProgramLog") }?,
            // SAFETY: as above.
            ptx_size: unsafe { of.find("nvrtcGetPTXSize") }?,
            // SAFETY: as above.
            ptx: unsafe { of.find("nvrtcGetPTX") }?,
            // SAFETY: as above.
            cubin_size: unsafe { of.find("nvrtcGetCUBINSize") }?,
            // SAFETY: as above.
            cubin: unsafe { of.find("nvrtcGetCUBIN") }?,
            // SAFETY: as above.
            add_name: unsafe { of.find("nvrtcAddNameExpression") }?,
            // SAFETY: as above.
            lowered_name: unsafe { of.find("nvrtcGetLoweredName") }?,
        };
        Ok(Self { path, functions, _library: library })
    }

    /// The library's file, as it was asked for.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its version, such as (12, 9).
    ///
    /// # Errors
    /// `Call`.
    pub fn version(&self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to integers of this frame.
        let code = unsafe { (self.functions.version)(&raw mut major, &raw mut minor) };
        self.check("nvrtcVersion", code)?;
        Ok((major, minor))
    }

    /// Compiles a source, which errors name by `name`; it can include `<symwin.cuh>`.
    ///
    /// # Errors
    /// `Compile` with the compiler's log; `Input` for an architecture or a text that cannot be; `Call`.
    pub fn compile(&self, source: &str, name: &str, options: &Options) -> Result<Compiled, NvrtcError> {
        let program = Program::new(self, source, name, &options.headers)?;
        let names = options.names.iter().cloned().map(text).collect::<Result<Vec<_>, _>>()?;
        for name in &names {
            // SAFETY: the program lives, and the name ends with a zero and is copied.
            let code = unsafe { (self.functions.add_name)(program.handle, name.as_ptr()) };
            self.check("nvrtcAddNameExpression", code)?;
        }
        let arguments = options.arguments()?;
        let pointers = pointers(&arguments);
        // SAFETY: the program lives, and there are as many options, each ending with a zero, as is said.
        let code = unsafe { (self.functions.compile)(program.handle, count(&pointers)?, pointers.as_ptr()) };
        let log = program.text("nvrtcGetProgramLog", self.functions.log_size, self.functions.log)?;
        if code == COMPILATION_FAILED {
            return Err(NvrtcError::Compile { name: name.to_owned(), arch: options.arch.clone(), log });
        }
        self.check("nvrtcCompileProgram", code).map_err(|error| match error {
            // The log says which option it was.
            NvrtcError::Call { function, code, text } => {
                NvrtcError::Call { function, code, text: format!("{text}: {}", log.trim()) }
            }
            other => other,
        })?;
        let cubin = options
            .arch
            .starts_with("sm_")
            .then(|| program.bytes("nvrtcGetCUBIN", self.functions.cubin_size, self.functions.cubin));
        Ok(Compiled {
            cubin: cubin.transpose()?,
            ptx: program.text("nvrtcGetPTX", self.functions.ptx_size, self.functions.ptx)?,
            log,
            names: names.iter().map(|name| program.lowered(name)).collect::<Result<_, _>>()?,
        })
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), NvrtcError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number, and gives a text of the library's own or null.
        let message = unsafe { (self.functions.error_string)(code) };
        let text = if message.is_null() {
            "an error without a name".to_owned()
        } else {
            // SAFETY: not null, so a text that ends with a zero and stays as long as the library.
            unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
        };
        Err(NvrtcError::Call { function, code, text })
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A library in which functions are looked up.
struct Symbols<'l> {
    library: &'l Library,
    path: &'l str,
}

impl Symbols<'_> {
    /// # Safety
    /// `T` is the type of a pointer to that function, which is not used after the library has gone.
    unsafe fn find<T: Copy>(&self, symbol: &'static str) -> Result<T, NvrtcError> {
        // SAFETY: the caller knows the type.
        let found = unsafe { self.library.get::<T>(symbol) };
        found.map(|found| *found).map_err(|_| NvrtcError::Incomplete { path: self.path.to_owned(), symbol })
    }
}

/// A program that is being compiled. It goes with this value.
struct Program<'n> {
    nvrtc: &'n Nvrtc,
    handle: Handle,
}

impl<'n> Program<'n> {
    fn new(
        nvrtc: &'n Nvrtc,
        source: &str,
        name: &str,
        headers: &[(String, String)],
    ) -> Result<Self, NvrtcError> {
        let (source, name) = (text(source)?, text(name)?);
        let own = (HEADER_NAME, HEADER);
        let all = || headers.iter().map(|(name, text)| (&**name, &**text)).chain([own]);
        let texts = all().map(|(_, header)| text(header)).collect::<Result<Vec<_>, _>>()?;
        let names = all().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let (texts, names) = (pointers(&texts), pointers(&names));
        let mut handle = ptr::null_mut();
        // SAFETY: all texts end with a zero and are copied, and there are as many headers and names as is said.
        let code = unsafe {
            (nvrtc.functions.create)(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                count(&texts)?,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", code)?;
        Ok(Self { nvrtc, handle })
    }

    /// What a pair of functions gives: how long something is, and then that.
    fn bytes(&self, function: &'static str, size: Size, get: Get) -> Result<Vec<u8>, NvrtcError> {
        let mut length = 0;
        // SAFETY: the program lives, and the length is of this frame.
        let code = unsafe { size(self.handle, &raw mut length) };
        self.nvrtc.check(function, code)?;
        let mut bytes = vec![0; length];
        // SAFETY: the program lives, and there is room for as many bytes as it said.
        let code = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        self.nvrtc.check(function, code)?;
        Ok(bytes)
    }

    /// The same for a text, without the zero at its end.
    fn text(&self, function: &'static str, size: Size, get: Get) -> Result<String, NvrtcError> {
        let mut bytes = self.bytes(function, size, get)?;
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn lowered(&self, name: &CStr) -> Result<String, NvrtcError> {
        let mut lowered = ptr::null();
        // SAFETY: the program lives and was compiled with this name among its own.
        let code =
            unsafe { (self.nvrtc.functions.lowered_name)(self.handle, name.as_ptr(), &raw mut lowered) };
        self.nvrtc.check("nvrtcGetLoweredName", code)?;
        if lowered.is_null() {
            let what = format!("{} has no name in the binary", name.to_string_lossy());
            return Err(NvrtcError::Input { what });
        }
        // SAFETY: not null, so a text that ends with a zero and lives as long as the program.
        Ok(unsafe { CStr::from_ptr(lowered) }.to_string_lossy().into_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle was made by this library and is given back only here.
        let code = unsafe { (self.nvrtc.functions.destroy)(&raw mut self.handle) };
        if let Err(error) = self.nvrtc.check("nvrtcDestroyProgram", code) {
            tracing::error!(%error, "a program of NVRTC could not be given back");
        }
    }
}

fn text(text: impl Into<Vec<u8>>) -> Result<CString, NvrtcError> {
    CString::new(text).map_err(|error| {
        let what = format!("a text for NVRTC has a zero byte at {}", error.nul_position());
        NvrtcError::Input { what }
    })
}

/// Valid as long as the texts.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn count<T>(items: &[T]) -> Result<c_int, NvrtcError> {
    c_int::try_from(items.len()).map_err(|_| NvrtcError::Input { what: "more than 2^31 texts".to_owned() })
}

/// `NVRTC_ERROR_COMPILATION`.
const COMPILATION_FAILED: c_int = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_is_a_clean_absence_that_says_what_to_do() {
        let error = Nvrtc::load_from(Some("/nowhere/libnvrtc.so".into())).unwrap_err();
        assert!(matches!(&error, NvrtcError::Missing { tried } if tried.len() == 1), "{error}");
        let text = error.to_string();
        assert!(text.contains("/nowhere/libnvrtc.so") && text.contains(VARIABLE), "{text}");
    }

    #[test]
    fn another_library_is_told_apart() {
        let error = Nvrtc::load_from(Some("libc.so.6".into())).unwrap_err();
        assert!(matches!(&error, NvrtcError::Incomplete { symbol: "nvrtcVersion", .. }), "{error}");
    }

    #[test]
    fn an_architecture_must_be_real_or_virtual() {
        for good in ["sm_90", "sm_90a", "compute_80"] {
            assert!(Options::new(good).arguments().is_ok());
        }
        for bad in ["", "90", "sm_", "gfx942", "sm_x"] {
            assert!(matches!(Options::new(bad).arguments(), Err(NvrtcError::Input { .. })), "{bad}");
        }
        let options = Options::new("sm_90").define("N", 3).option("--fmad=false");
        let arguments = options.arguments().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|text| text.to_str().unwrap()).collect();
        assert_eq!(arguments, ["--gpu-architecture=sm_90", "--define-macro=N=3", "--fmad=false"]);
        assert!(matches!(options.define("A\0", 1).arguments(), Err(NvrtcError::Input { .. })));
    }
}
