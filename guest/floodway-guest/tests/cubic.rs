//! The arithmetic of the BPF programs' CUBIC, compiled for the host and held against RFC 9438 by `cubic.c`.

use std::path::Path;
use std::process::Command;

#[test]
fn cubic_follows_the_rfc() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubic");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cubic.c");
    let options = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-fsanitize=undefined"];
    let mut compiler = Command::new("cc");
    compiler.args(options).arg(source).arg("-o").arg(&program).arg("-lm");
    assert!(compiler.status().unwrap().success());
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
