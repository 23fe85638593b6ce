//! What a while has shown of a port, for its diagnosis.

use std::path::Path;
use std::thread;
use std::time::Duration;

use floodway_switch::api::diagnosis::{Diagnosis, DropReport, Recent};
use floodway_switch::control::ClientError;

use super::model::{DropRate, Model, Row, Total};
use super::sampler::Sampler;

/// What devices of uplinks do not take, and what their queues have no room for, is called so.
const UPLINK: &str = "uplink_";

/// Looks at all ports of the switch at `control` for `time`.
///
/// # Errors
/// The switch does not answer.
pub fn watch(control: &Path, time: Duration) -> Result<Model, ClientError> {
    let (mut sampler, mut model) = (Sampler::new(control)?, Model::default());
    model.take(sampler.look(None)?);
    thread::sleep(time);
    model.take(sampler.look(None)?);
    Ok(model)
}

/// Adds what `model` has seen in the last `time` to a diagnosis, and judges anew.
pub fn fill(diagnosis: &mut Diagnosis, model: &Model, time: Duration) {
    let seconds = time.as_secs_f64();
    let row = model.rows().iter().find(|row| row.name == diagnosis.port);
    diagnosis.recent = row.map(|row| Recent {
        seconds,
        top_drop: top_drop(row, seconds),
        vcpu_wait: row.vcpu_wait,
        vcpu_run: row.vcpu_run,
    });
    for report in &mut diagnosis.uplinks {
        let uplink = model.uplinks().iter().find(|uplink| uplink.name == report.name);
        report.recent_drop = uplink.and_then(|uplink| top_uplink_drop(uplink, seconds));
    }
    diagnosis.judge();
}

fn top_drop(row: &Row, seconds: f64) -> Option<DropReport> {
    let top = row.drops.first()?;
    let passed = if top.direction == "rx" { row.rx_pps } else { row.tx_pps };
    Some(report(top, &row.drops, passed?, seconds))
}

fn top_uplink_drop(uplink: &Total, seconds: f64) -> Option<DropReport> {
    let is_its = |drop: &&DropRate| drop.direction == "tx" && drop.reason.starts_with(UPLINK);
    let top = uplink.drops.iter().find(is_its)?;
    Some(report(top, &uplink.drops, uplink.tx_pps?, seconds))
}

/// One of several `drops`, where so many frames a second passed the same way.
fn report(top: &DropRate, drops: &[DropRate], passed: f64, seconds: f64) -> DropReport {
    let same_way = drops.iter().filter(|drop| drop.direction == top.direction);
    let all = passed + same_way.map(|drop| drop.per_s).sum::<f64>();
    DropReport {
        direction: top.direction.to_owned(),
        reason: top.reason.clone(),
        frames: (top.per_s * seconds).round() as u64,
        share: top.per_s / all,
    }
}
