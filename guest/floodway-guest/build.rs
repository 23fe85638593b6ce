//! Compiles the BPF programs. They are part of the binary (`module::object`).

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_MODULE").is_some() {
        compile();
    }
}

fn compile() {
    let set = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(set("OUT_DIR")).join("floodway.bpf.o");
    let status = Command::new(&clang)
        // BPF_PROG declares a context that programs need not use. Debug information becomes the BTF that relocates the programs to the running kernel.
        .args([
            "-target",
            "bpf",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Werror",
            "-mcpu=v3",
        ])
        // libbpf's headers, of the version that loads the programs.
        .arg(format!("-I{}", set("DEP_BPF_INCLUDE")))
        // Debian keeps asm/types.h here, where only a compiler for the host's own target looks.
        .arg(format!("-I/usr/include/{}-linux-gnu", set("CARGO_CFG_TARGET_ARCH")))
        .args(["-c", "bpf/floodway.bpf.c", "-o"])
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} cannot compile bpf/floodway.bpf.c ({status})"),
        Err(error) => panic!("cannot run {clang}: {error}; `apt-get install clang` brings it"),
    }
}
