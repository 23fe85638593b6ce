//! A table of scripted exchanges: one row for each rule of TCP that the offload takes over.
//!
//! # Theory of operation
//! A row is a script as packetdrill has them: segments in, segments out, times in seconds since the handshake
//! ended. It runs twice in virtual time, with the offload off and on, and the network must see the same segments
//! with every field the same at the same times, but for the differences that the row lists.
//!
//! ```text
//! [name] RFC 5681 section 3.2: the rule in a sentence
//! set nosack rtt=50                        what the connection is like (`row::Setup`)
//! 0.000 write 3000                         the guest's application
//! 0.000 wire> . 1:1001(1000) ack 1         has to leave for the network
//! 0.050 peer> . 1:1(0) ack 1001 win 512    comes from the network
//! ! reason                                 a key of `rows/reasons.txt`
//! - 0.090 wire> . 1001:1001(0) ack 1       with the offload off only
//! + 0.050 wire> . 1001:1001(0) ack 1       with the offload on only
//! 5.000 end                                nothing else leaves before
//! ```
//!
//! Numbers are relative to both SYNs. All that leaves has to be written; of an expected segment, a window and
//! timestamps that are not written are not compared with the script, but always between the two runs. PSH that is not written is compared only with `set push`.
//! There are two kinds of rows:
//! - *Exchange* (with `write` or `close`): the peer is scripted, the guest is [`sender::Sender`], a plain TCP by
//!   the letter of the RFCs. For rules about what a sender does and when.
//! - *Segments* (with `guest>`): both sides are scripted. For rules about single segments, and for those of
//!   receivers. Lines with `vm>` say what the guest gets; a row with any of them has to have all.
//!
//! A listed difference has to occur: each line has to come in its run, and nothing that fits it in the other. Every reason has
//! to be used. `FLOODWAY_SCRIPT=name` runs one row.
//!
//! Source: the notation is that of packetdrill (Cardwell et al., USENIX ATC 2013).

mod parse;
mod row;
mod run;
mod sender;

use std::collections::BTreeSet;

use row::Row;

const FILES: &[(&str, &str)] = &[
    ("open", include_str!("rows/open.txt")),
    ("close", include_str!("rows/close.txt")),
    ("window", include_str!("rows/window.txt")),
    ("options", include_str!("rows/options.txt")),
    ("data", include_str!("rows/data.txt")),
    ("blind", include_str!("rows/blind.txt")),
    ("congestion", include_str!("rows/congestion.txt")),
    ("sack", include_str!("rows/sack.txt")),
    ("early_sack", include_str!("rows/early_sack.txt")),
    ("timer", include_str!("rows/timer.txt")),
    ("probe", include_str!("rows/probe.txt")),
    ("timestamps", include_str!("rows/timestamps.txt")),
    ("ecn", include_str!("rows/ecn.txt")),
    ("path_mtu", include_str!("rows/path_mtu.txt")),
    ("early_ack", include_str!("rows/early_ack.txt")),
    ("algorithms", include_str!("rows/algorithms.txt")),
];
const REASONS: &str = include_str!("rows/reasons.txt");

fn table() -> Vec<Row> {
    FILES.iter().flat_map(|(file, text)| parse::rows(file, text)).collect()
}

/// Keys of the reasons for which the two runs may differ.
fn reasons() -> BTreeSet<&'static str> {
    let lines = REASONS.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#']));
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn every_row_holds() {
    let wanted = std::env::var("FLOODWAY_SCRIPT").ok();
    let rows: Vec<_> =
        table().into_iter().filter(|row| wanted.as_ref().is_none_or(|w| w == row.name)).collect();
    assert!(!rows.is_empty(), "no row of that name");
    let faults: Vec<_> = rows.iter().filter_map(|row| run::check(row).err()).collect();
    assert!(faults.is_empty(), "{} of {} rows\n{}", faults.len(), rows.len(), faults.join("\n"));
}

#[test]
fn there_is_a_row_for_each_rule() {
    let rows = table();
    assert!(rows.len() >= 120, "{} rows", rows.len());
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "two rows have the same name");
}

/// The page that says which RFC is implemented where.
const PAGE: &str = include_str!("../../../../../docs/src/theory/rfcs.md");

#[test]
fn the_page_of_rfcs_names_rows_that_exist() {
    let rows = table();
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    let proofs = PAGE.lines().filter(|line| line.starts_with("| ")).filter_map(|line| {
        let proof = line.trim_end_matches([' ', '|']).rsplit("| ").next()?;
        Some(proof.split('`').skip(1).step_by(2).filter(|name| !name.contains('_')))
    });
    let missing: Vec<_> = proofs.flatten().filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "no such rows: {missing:?}");
    let rfc = |row: &Row| row.source.split_whitespace().nth(1).unwrap_or("").to_owned();
    let unnamed: BTreeSet<_> =
        rows.iter().map(rfc).filter(|number| !PAGE.contains(number.as_str())).collect();
    assert!(unnamed.is_empty(), "RFCs of rows that the page does not have: {unnamed:?}");
}

#[test]
fn every_difference_has_a_reason_that_is_written_down() {
    let rows = table();
    let used: BTreeSet<_> =
        rows.iter().flat_map(|row| &row.lines).filter_map(|line| line.reason).collect();
    assert_eq!(used, reasons());
}
