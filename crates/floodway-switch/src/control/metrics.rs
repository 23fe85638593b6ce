//! The status document as OpenMetrics text, which Prometheus scrapes.
//!
//! Names follow the Prometheus conventions: base units, `_total` on counters, one metric per fact
//! with labels `port` or `uplink`, `queue` and `direction` (`rx` or `tx`, as in [`crate::api::status`]).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::api::status::{
    ClassStatus, Drops, OffloadStatus, PortState, PortStatus, QueuePairStatus, Status,
    TrafficStatus, UplinkStatus,
};

/// MIME type of what [`encode`] makes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of one sample.
type Labels = Vec<(&'static str, String)>;

/// The metrics of `status`.
pub(super) fn encode(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("floodway");
    registry.register_collector(Box::new(Snapshot(status)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot(Status);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics(&mut encoder);
        self.process(&mut metrics)?;
        self.workers(&mut metrics)?;
        self.ports(&mut metrics)?;
        self.work(&mut metrics)?;
        self.traffic(&mut metrics)?;
        self.pairs(&mut metrics)?;
        self.drops(&mut metrics)?;
        self.offload(&mut metrics)?;
        self.egress(&mut metrics)?;
        self.notifications(&mut metrics)
    }
}

impl Snapshot {
    fn process(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let switch = &self.0.switch;
        let build = vec![("version", switch.version.clone())];
        metrics.gauge("build_info", "Version that is running", [(build, 1.0)])?;
        let uptime = [(Labels::new(), switch.uptime_s)];
        metrics.gauge("uptime_seconds", "Time since the switch started", uptime)?;
        let entries = [(Labels::new(), self.0.l2.len() as f64)];
        metrics.gauge("l2_entries", "Addresses in the forwarding table", entries)
    }

    fn pairs(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let pairs = || {
            self.0.traffic.iter().map(|pair| {
                let by = pair.by.name().to_owned();
                (vec![("from", pair.from.clone()), ("to", pair.to.clone()), ("by", by)], pair)
            })
        };
        let packets = pairs().map(|(labels, pair)| (labels, pair.packets));
        metrics.counter("pair_packets", "Frames from one port or uplink to another", packets)?;
        let bytes = pairs().map(|(labels, pair)| (labels, pair.bytes));
        metrics.counter("pair_bytes", "Bytes from one port or uplink to another", bytes)
    }

    fn workers(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let workers = || {
            let labels = |index: usize| vec![("worker", index.to_string())];
            self.0.workers.iter().map(move |worker| (labels(worker.index), worker))
        };
        let polls = workers().map(|(labels, worker)| (labels, worker.polls));
        metrics.counter("worker_polls", "Rounds over all ports and uplinks", polls)?;
        let busy = workers().map(|(labels, worker)| (labels, worker.busy_polls));
        metrics.counter("worker_busy_polls", "Rounds that found something to do", busy)?;
        let sleeps = workers().map(|(labels, worker)| (labels, worker.sleeps));
        metrics.counter("worker_sleeps", "Times that the worker went to sleep", sleeps)?;
        let stalls = workers().map(|(labels, worker)| (labels, worker.stalls));
        metrics.counter("worker_stalls", "Times that the worker stood still", stalls)?;
        let awake = workers().map(|(labels, worker)| (labels, worker.awake));
        metrics.gauge("worker_awake_ratio", "Share of the uptime not asleep", awake)
    }

    fn ports(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let up = |port: &PortStatus| f64::from(u8::from(port.state == PortState::Running));
        let running = self.0.ports.iter().map(|port| (port_labels(port), up(port)));
        metrics.gauge("port_running", "1 while the guest's driver is running", running)?;
        let enabled = |port: &PortStatus| f64::from(port.queue_pairs_enabled);
        let pairs = self.0.ports.iter().map(|port| (port_labels(port), enabled(port)));
        metrics.gauge("port_queue_pairs", "Queue pairs that the guest uses", pairs)?;
        self.quarantines(metrics)?;
        let frames = self.queues().map(|(labels, q)| (labels, q.rx.pending_frames as f64));
        let help = "Frames that wait for the guest's buffers";
        metrics.gauge("port_pending_frames", help, frames)?;
        let bytes = self.queues().map(|(labels, q)| (labels, q.rx.pending_bytes as f64));
        metrics.gauge("port_pending_bytes", "Bytes of the queue's bound that they take", bytes)
    }

    fn quarantines(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let now = |port: &PortStatus| f64::from(u8::from(port.quarantine.is_some()));
        let now = self.0.ports.iter().map(|port| (port_labels(port), now(port)));
        let help = "1 from when a front-end is cut off until another one comes";
        metrics.gauge("port_quarantined", help, now)?;
        let times = self.0.ports.iter().flat_map(|port| {
            port.quarantines.iter().map(|(reason, &n)| {
                let labels = port_labels(port).into_iter().chain([("reason", reason.clone())]);
                (labels.collect::<Labels>(), n)
            })
        });
        metrics.counter("port_quarantines", "Front-ends cut off, by cause", times)
    }

    fn work(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let all = || {
            let worker = |index: usize| ("worker", index.to_string());
            let ports = self.0.ports.iter().map(move |port| {
                (vec![("port", port.name.clone()), worker(port.worker)], port.work)
            });
            ports.chain(self.0.uplinks.iter().map(move |uplink| {
                (vec![("uplink", uplink.name.clone()), worker(uplink.worker)], uplink.work)
            }))
        };
        let seconds = all().map(|(labels, work)| (labels, work.seconds));
        metrics.counter("work_seconds", "Time that workers spent on it, by the clock while they are busy and by the cost model otherwise", seconds)?;
        let share = all().map(|(labels, work)| (labels, work.share));
        metrics.gauge("work_share_ratio", "Share of its worker's work in the last second", share)
    }

    fn traffic(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let of = |value: fn(&TrafficStatus) -> u64| {
            self.directions().into_iter().map(move |(labels, traffic)| (labels, value(traffic)))
        };
        let help = "Frames; a GSO packet is one";
        metrics.counter("packets", help, of(|traffic| traffic.packets))?;
        metrics.counter("bytes", "Bytes of the frames", of(|traffic| traffic.bytes))?;
        let help = "GSO packets among the packets";
        metrics.counter("gso_packets", help, of(|traffic| traffic.gso_packets))
    }

    fn drops(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let mut samples = Vec::new();
        let mut add = |labels: &Labels, drops: &Drops| {
            samples.extend(drops.iter().map(|(reason, &n)| {
                let reason = ("reason", reason.clone());
                (labels.iter().cloned().chain([reason]).collect::<Labels>(), n)
            }));
        };
        for (labels, traffic) in self.directions() {
            add(&labels, &traffic.drops);
        }
        for port in &self.0.ports {
            let mut labels = port_labels(port);
            labels.extend([("queue", "none".to_owned()), ("direction", "rx".to_owned())]);
            add(&labels, &port.undelivered);
        }
        metrics.counter("drops", "Frames dropped; they are not among the packets", samples)
    }

    fn notifications(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let both = || {
            self.queues().flat_map(|(labels, queue)| {
                let rx = (directed(&labels, "rx"), queue.rx.notifications);
                [rx, (directed(&labels, "tx"), queue.tx.notifications)]
            })
        };
        let sent = both().map(|(labels, n)| (labels, n.sent));
        metrics.counter("notifications", "Interrupts sent to the guest", sent)?;
        let suppressed = both().map(|(labels, n)| (labels, n.suppressed));
        metrics.counter("notifications_suppressed", "Interrupts not needed", suppressed)
    }

    /// The queues and meters of uplinks.
    fn egress(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let uplinks = || {
            let labels = |uplink: &UplinkStatus| vec![("uplink", uplink.name.clone())];
            self.0.uplinks.iter().map(move |uplink| (labels(uplink), &uplink.egress))
        };
        let classes = |value: fn(&ClassStatus) -> f64| {
            uplinks().flat_map(move |(labels, egress)| {
                [("high", &egress.high), ("low", &egress.low)].map(|(class, status)| {
                    let class = ("class", class.to_owned());
                    (labels.iter().cloned().chain([class]).collect::<Labels>(), value(status))
                })
            })
        };
        let help = "Frames that wait for the uplink's device";
        metrics.gauge("uplink_queue_frames", help, classes(|class| class.packets as f64))?;
        metrics.gauge("uplink_queue_bytes", "Their bytes", classes(|class| class.bytes as f64))?;
        let queued = uplinks().map(|(labels, egress)| (labels, egress.queued));
        metrics.counter(
            "uplink_queued",
            "Frames that had to wait, or were dropped instead",
            queued,
        )?;
        let marked = uplinks().map(|(labels, egress)| (labels, egress.marked));
        metrics.counter("uplink_marked", "Frames that were marked CE", marked)?;
        let meters = || uplinks().filter_map(|(labels, egress)| Some((labels, egress.meter?)));
        let pairs = meters().map(|(labels, meter)| (labels, meter.pairs as f64));
        metrics.gauge("meter_pairs", "Pairs of guest and destination that are known", pairs)?;
        let packets = meters().flat_map(|(labels, meter)| {
            [("high", meter.high_packets), ("low", meter.low_packets)].map(|(class, n)| {
                let class = ("class", class.to_owned());
                (labels.iter().cloned().chain([class]).collect::<Labels>(), n)
            })
        });
        metrics.counter("meter_packets", "Frames by the class that they were tagged with", packets)
    }

    fn offload(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let of = |value: fn(&OffloadStatus) -> f64| {
            self.0.ports.iter().map(move |port| (port_labels(port), value(&port.offload)))
        };
        let bit = |on: bool| f64::from(u8::from(on));
        let halves = self.0.ports.iter().flat_map(|port| {
            let half = |direction| directed(&port_labels(port), direction);
            [(half("tx"), bit(port.offload.transmit)), (half("rx"), bit(port.offload.receive))]
        });
        metrics.gauge("offload_enabled", "1 where TCP offload is on", halves)?;
        let help = "Connections that the TCP offload knows";
        metrics.gauge("offload_flows", help, of(|offload| offload.flows as f64))?;
        let help = "Connections whose congestion control the switch has taken over";
        metrics.gauge("offload_online_flows", help, of(|offload| offload.online as f64))?;
        let help = "Bytes of the budget that the connections use";
        metrics.gauge(
            "offload_budget_used_bytes",
            help,
            of(|offload| offload.budget_used as f64),
        )?;
        let help = "Bytes acknowledged for the guest and not by it yet";
        metrics.gauge("offload_kept_bytes", help, of(|offload| offload.kept as f64))?;
        let help = "Bytes of memory that frames stored by the TCP offload take";
        metrics.gauge("offload_stored_bytes", help, of(|offload| offload.stored_bytes as f64))?;
        let help = "What the TCP offload has done";
        let events = self.0.ports.iter().flat_map(|port| {
            port.offload.counters.iter().map(|(event, &n)| {
                let mut labels = port_labels(port);
                labels.push(("event", event.clone()));
                (labels, n)
            })
        });
        metrics.counter("offload_events", help, events)
    }

    /// Each queue pair of each port.
    fn queues(&self) -> impl Iterator<Item = (Labels, &QueuePairStatus)> {
        self.0.ports.iter().flat_map(|port| {
            port.queues.iter().enumerate().map(|(index, queue)| {
                let mut labels = port_labels(port);
                labels.push(("queue", index.to_string()));
                (labels, queue)
            })
        })
    }

    /// Each direction of each queue and uplink.
    fn directions(&self) -> Vec<(Labels, &TrafficStatus)> {
        let mut all = Vec::new();
        for (labels, queue) in self.queues() {
            all.push((directed(&labels, "rx"), &queue.rx.traffic));
            all.push((directed(&labels, "tx"), &queue.tx.traffic));
        }
        for uplink in &self.0.uplinks {
            let labels = vec![("uplink", uplink.name.clone())];
            all.push((directed(&labels, "rx"), &uplink.rx));
            all.push((directed(&labels, "tx"), &uplink.tx));
        }
        all
    }
}

fn port_labels(port: &PortStatus) -> Labels {
    vec![("port", port.name.clone())]
}

fn directed(labels: &Labels, direction: &str) -> Labels {
    labels.iter().cloned().chain([("direction", direction.to_owned())]).collect()
}

/// Writes one metric with all its samples at a time.
struct Metrics<'e, 'w>(&'e mut DescriptorEncoder<'w>);

impl Metrics<'_, '_> {
    fn counter<V>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result
    where
        V: EncodeCounterValue + Clone,
    {
        let samples = samples.into_iter().map(|(labels, n)| (labels, ConstCounter::new(n)));
        self.metric(name, help, MetricType::Counter, samples)
    }

    fn gauge<V>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result
    where
        V: EncodeGaugeValue + Clone,
    {
        let samples = samples.into_iter().map(|(labels, n)| (labels, ConstGauge::new(n)));
        self.metric(name, help, MetricType::Gauge, samples)
    }

    fn metric(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, impl EncodeMetric)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, sample) in samples {
            if labels.is_empty() {
                // A family without labels would be written with empty braces.
                return sample.encode(family);
            }
            sample.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
