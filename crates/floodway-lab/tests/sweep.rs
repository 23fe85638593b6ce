//! Sweeps from the command line: they go on where they were stopped, and make the same table however they came to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// 20 seeds of ten runs.
const RUNS: usize = 200;
const SEEDS: &str = "20";

fn experiment() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/short-sweep.toml")
}

fn command(out: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodway-lab"));
    command.arg("sweep").arg(experiment()).args(["--seeds", SEEDS, "--out"]).arg(out);
    command.args(arguments);
    command
}

fn sweep(out: &Path, arguments: &[&str]) -> Output {
    command(out, arguments).output().unwrap()
}

fn journal(out: &Path) -> PathBuf {
    out.with_file_name(format!("{}.journal", out.file_name().unwrap().display()))
}

/// The runs of the journal's whole lines, in the order in which they ended.
fn ended(out: &Path) -> Vec<u64> {
    let text = fs::read_to_string(journal(out)).unwrap_or_default();
    let whole = text.split_inclusive('\n').skip(1).filter(|line| line.ends_with('\n'));
    let run = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["run"].as_u64();
    whole.map(|line| run(line).unwrap()).collect()
}

fn start(out: &Path) -> Child {
    command(out, &["--threads", "1"]).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_sweep_that_is_killed_does_the_rest_and_makes_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, killed] = ["whole.parquet", "killed.parquet"].map(|name| dir.path().join(name));
    let done = sweep(&whole, &[]);
    assert!(done.status.success(), "{done:?}");

    let mut child = start(&killed);
    while ended(&killed).len() < RUNS / 4 && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = ended(&killed);
    // The kill in the middle of a line, which it may have missed.
    let mut torn = fs::read(journal(&killed)).unwrap();
    torn.truncate(torn.iter().rposition(|&byte| byte == b'\n').unwrap() + 1);
    torn.extend(b"{\"run\":199,\"measurements\":[{\"exp");
    fs::write(journal(&killed), torn).unwrap();

    let left = sweep(&killed, &["--list"]);
    let left = String::from_utf8(left.stdout).unwrap().lines().count();
    assert_eq!(left, RUNS - before.len());
    let done = sweep(&killed, &[]);
    assert!(done.status.success(), "{done:?}");
    let mut runs = ended(&killed);
    assert_eq!(runs[..before.len()], before, "what was done stays");
    runs.sort_unstable();
    assert_eq!(runs, (0..RUNS as u64).collect::<Vec<_>>(), "each run is done once");
    assert_eq!(fs::read(&whole).unwrap(), fs::read(&killed).unwrap());

    // Nothing is left: the table is made again, from the journal alone.
    fs::remove_file(&killed).unwrap();
    assert!(sweep(&killed, &["--collect"]).status.success());
    assert_eq!(fs::read(&whole).unwrap(), fs::read(&killed).unwrap());
    assert_eq!(ended(&killed).len(), RUNS);
}

#[test]
fn a_run_that_failed_is_named_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.parquet");
    assert!(sweep(&out, &[]).status.success());
    fs::remove_file(&out).unwrap();
    let mut text = fs::read_to_string(journal(&out)).unwrap();
    text.push_str("{\"run\":13,\"failed\":\"no memory\"}\n");
    fs::write(journal(&out), &text).unwrap();

    let collected = sweep(&out, &["--collect"]);
    let said = String::from_utf8(collected.stderr).unwrap();
    assert!(!collected.status.success() && !out.exists());
    assert!(said.contains("run 13: seed 2000, ") && said.contains("no memory"), "{said}");
    assert!(said.contains("bytes="), "{said}");

    assert!(sweep(&out, &[]).status.success() && out.exists());
    assert_eq!(ended(&out).last(), Some(&13), "it alone was done again");
}

#[test]
fn a_journal_of_another_sweep_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.parquet");
    assert!(sweep(&out, &["--list"]).status.success());
    let other = sweep(&out, &["--list", "--seed", "7"]);
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(!other.status.success() && said.contains("another sweep"), "{said}");
}
