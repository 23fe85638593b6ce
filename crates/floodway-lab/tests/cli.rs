//! The command line: exit codes and messages that scripts rely on.

use std::path::Path;
use std::process::{Command, Output};

const REPORT: &str = r#"{"experiment":"t","world":"real","seed":1,"host":{},"rows":[
    {"name":"a","unit":"s","value":VALUE,"baseline":null,"ratio":null,"paper":null,"low":null,
     "high":2.0,"verdict":"VERDICT"}]}"#;

fn lab(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_floodway-lab"))
        .current_dir(root)
        .args(arguments)
        .output()
        .unwrap()
}

fn check(value: &str, verdict: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let text = REPORT.replace("VALUE", value).replace("VERDICT", verdict);
    std::fs::write(&path, text).unwrap();
    lab(&["check", path.to_str().unwrap()])
}

#[test]
fn check_says_by_its_exit_code_whether_all_figures_are_inside_their_bands() {
    let ok = check("1.5", "ok");
    assert_eq!(ok.status.code(), Some(0), "{ok:?}");
    for verdict in ["below target", "undecided"] {
        let outside = check("2.5", verdict);
        assert_eq!(outside.status.code(), Some(1), "{outside:?}");
        let text = String::from_utf8(outside.stdout).unwrap();
        assert_eq!(text, format!("{verdict}: a is 2.50, accepted is ≤ 2\n"));
    }
}

#[test]
fn pages_are_made_from_reports_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = REPORT.replace("VALUE", "1.5").replace("VERDICT", "ok");
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/report.json"), text).unwrap();
    let output = lab(&["pages", dir.path().to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("index.html: 1 reports\n"));
    let list = std::fs::read_to_string(dir.path().join("index.html")).unwrap();
    assert!(list.contains("a/report.html") && dir.path().join("a/report.html").exists());
}

#[test]
fn check_of_no_report_is_an_error_of_its_own() {
    let output = lab(&["check", "/nonexistent/report.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nonexistent/report.json"));
    assert_eq!(check("null", "maybe").status.code(), Some(2));
}

#[test]
fn an_experiment_without_a_simulated_form_says_so() {
    let output = lab(&["sim", "experiments/demo.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("demo.toml: has no table [sim]"), "{text}");
}

#[test]
fn a_missing_experiment_is_named() {
    let output = lab(&["real", "experiments/none.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("experiments/none.toml"));
}

#[test]
fn completions_are_printed() {
    let output = lab(&["completions", "bash"]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("floodway-lab"));
}
