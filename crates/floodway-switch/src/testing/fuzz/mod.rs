//! What has to hold for any input: fuzz targets and property tests feed the same functions. They panic where it does not.

mod capture_filter;
#[cfg(any(test, fuzzing))]
mod cursor;
#[cfg(any(test, fuzzing))]
mod inbound;
mod qmp;
#[cfg(any(test, fuzzing))]
mod vhost;

pub use capture_filter::capture_filter;
#[cfg(any(test, fuzzing))]
pub use inbound::inbound_frames;
pub use qmp::qmp;
#[cfg(any(test, fuzzing))]
pub use vhost::vhost;

/// Feeds all seeds of a target.
#[cfg(test)]
fn replay(target: &str, check: fn(&[u8])) {
    let dir = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let seeds = std::fs::read_dir(dir).expect("seeds").map(|seed| seed.expect("a seed").path());
    let fed = seeds.map(|seed| check(&std::fs::read(seed).expect("a seed"))).count();
    assert!(fed >= 3, "{target} has hardly any seeds");
}
