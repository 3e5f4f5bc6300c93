//! Gives the library the real one's name inside, so that a test which loads it by path has it found by
//! `dlopen("libcuda.so.1")` from then on.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
