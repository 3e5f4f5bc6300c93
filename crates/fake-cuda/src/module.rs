//! Images of device code: loaded and searched for names, never run.

use std::collections::BTreeMap;

use crate::abi::{self, In, Out, Text};
use crate::code::{Code, Done};
use crate::config::CONFIG;

/// Loaded images, and functions that were found in them.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    images: BTreeMap<u64, Vec<u8>>,
    /// Module by function.
    functions: BTreeMap<u64, u64>,
}

/// The bytes of an image, whose length it says itself: an ELF file, or the text of PTX.
fn image(at: usize) -> Done<Vec<u8>> {
    let magic = abi::at::<[u8; 4]>(at).get()?;
    if magic == *b"\x7fELF" {
        let header = abi::at::<[u8; 64]>(at).get()?;
        let word = |from: usize, len: usize| {
            header[from..from + len].iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))
        };
        let (sections, entry, count) = (word(40, 8), word(58, 2), word(60, 2));
        return abi::at::<u8>(at).get_all(sections + entry * count);
    }
    let text = Text::at(at).get()?;
    if text.contains(".version") { Ok(text.into_bytes()) } else { Err(Code::INVALID_IMAGE) }
}

entry! {
    [CONTEXT_NO_CAPTURE] fn cuModuleLoadData(module: Out<u64>, from: usize) |state| {
        module.check()?;
        let image = image(from)?;
        let number = state.fresh();
        state.modules.images.insert(number, image);
        module.put(number)
    }

    [CONTEXT_NO_CAPTURE] fn cuModuleUnload(module: u64) |state| {
        state.modules.images.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        state.modules.functions.retain(|_, of| *of != module);
        Ok(())
    }

    [CONTEXT] fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) |state| {
        let image = state.modules.images.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let name = name.get()?;
        if name.is_empty() || !image.windows(name.len()).any(|window| window == name.as_bytes()) {
            return Err(Code::NOT_FOUND);
        }
        let number = state.fresh();
        state.modules.functions.insert(number, module);
        function.put(number)
    }

    [CONTEXT] fn cuFuncLoad(function: u64) |state| {
        state.modules.functions.get(&function).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    // There is no processor for device code here: where FAKE_CUDA_LAUNCH says so, kernels do nothing at once.
    [CONTEXT] fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        parameters: In<u64>,
        extra: In<u64>,
    ) |state| {
        let _ = (grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, parameters, extra);
        state.modules.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        state.stream(stream)?;
        if CONFIG.ignores_kernels { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    }
}
