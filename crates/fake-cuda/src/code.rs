//! Results of calls, with the names and texts that `cuGetErrorName` and `cuGetErrorString` give.

use std::ffi::{CStr, c_char};

use crate::abi::Out;

/// A `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) u32);

/// What the body of an entry point gives back.
pub(crate) type Done<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        #[allow(dead_code, reason = "some are there only to be injected")]
        impl Code {
            $(pub(crate) const $name: Self = Self($number);)*
        }

        fn texts(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            match code.0 {
                0 => Some((c"CUDA_SUCCESS", c"no error")),
                $($number => Some((to_c(concat!("CUDA_ERROR_", stringify!($name), "\0")), to_c(concat!($text, "\0")))),)*
                _ => None,
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    MAP_FAILED = 205, "mapping of buffer object failed";
    UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ALREADY_MAPPED = 208, "resource already mapped";
    NOT_MAPPED = 211, "resource not mapped";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    FILE_NOT_FOUND = 301, "file not found";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, "unknown error";
}

/// A text that `concat!` has ended with a NUL.
const fn to_c(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"?",
    }
}

entry! {
    [NOTHING] fn cuGetErrorName(error: Code, text: Out<*const c_char>) |_state| {
        text_of(error, text, |(name, _)| name)
    }

    [NOTHING] fn cuGetErrorString(error: Code, text: Out<*const c_char>) |_state| {
        text_of(error, text, |(_, text)| text)
    }
}

fn text_of(
    error: Code,
    out: Out<*const c_char>,
    which: impl FnOnce((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Done {
    let Some(texts) = texts(error) else {
        out.put(std::ptr::null())?;
        return Err(Code::INVALID_VALUE);
    };
    out.put(which(texts).as_ptr())
}
