//! Sets the BPF linker's option for the expansion of memory copies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH");
    if target.as_deref() == Ok("bpf") {
        // Without this, clearing or copying even 12 bytes calls a loop over bytes: slower, and
        // twice the work for the verifier.
        println!("cargo::rustc-link-arg-bins=--disable-expand-memcpy-in-order");
    }
}
