//! The status document as text that Prometheus scrapes.
//!
//! Names follow the Prometheus conventions: base units, `_total` on counters, one metric per fact
//! with labels `port` or `uplink`, `queue` and `direction` (`rx` or `tx`, as in [`crate::api::status`]).
//!
//! **Zeros.** What is counted by reason or event has hundreds of series for each port, most of them at zero for ever, and those are left out: such a series
//! begins with its first count, which `increase` does not see. So drops are also counted without a reason (`frames_dropped`), which is always there. Gauges
//! of the TCP offload are left out for ports that have none. Pairs of ports grow with the square of the ports' number, and are there only for who asks for them.
//!
//! **Histograms** of durations have the same fixed buckets everywhere, so that they can be added up, and begin anew with a data plane, which Prometheus takes for a restart of the counter that
//! it is. A port that has delayed nothing, or measured no round trip, has none, and neither has a worker that has had nothing to do.
//!
//! **Format.** OpenMetrics for who accepts it, as Prometheus does, and otherwise the older text format, where the name of a counter's family ends with `_total`, too.

use std::collections::HashSet;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::api::control::{InboundPort, InboundStatus, MetricsQuery};
use crate::api::histogram::{BatchSizes, Histogram, bounds_s};
use crate::api::status::{
    ClassStatus, Drops, OffloadStatus, PortState, PortStatus, QueuePairStatus, Status,
    TrafficStatus, UplinkStatus, WorkerStatus,
};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl Format {
    /// What a client takes that sends this `Accept` header.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// Its MIME type.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Labels of one sample.
type Labels = Vec<(&'static str, String)>;

/// The metrics of `status` and `inbound`.
pub(super) fn encode(
    status: Status,
    inbound: Option<InboundStatus>,
    query: MetricsQuery,
    format: Format,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("floodway");
    registry.register_collector(Box::new(Snapshot { status, inbound, query }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Text => to_text(&text),
    })
}

/// OpenMetrics in the older format: what describes a counter has its whole name, and there is no mark at the end.
fn to_text(openmetrics: &str) -> String {
    let counters: HashSet<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[derive(Debug)]
struct Snapshot {
    status: Status,
    inbound: Option<InboundStatus>,
    query: MetricsQuery,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics(&mut encoder);
        self.process(&mut metrics)?;
        self.workers(&mut metrics)?;
        self.rounds(&mut metrics)?;
        self.ports(&mut metrics)?;
        self.work(&mut metrics)?;
        self.traffic(&mut metrics)?;
        if self.query.pairs {
            self.pairs(&mut metrics)?;
        }
        self.drops(&mut metrics)?;
        self.offload(&mut metrics)?;
        self.durations(&mut metrics)?;
        self.inbound(&mut metrics)?;
        self.egress(&mut metrics)?;
        self.notifications(&mut metrics)
    }
}

impl Snapshot {
    fn process(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let switch = &self.status.switch;
        let build = vec![("version", switch.version.clone())];
        metrics.gauge("build_info", "Version that is running", [(build, 1.0)])?;
        let uptime = [(Labels::new(), switch.uptime_s)];
        metrics.gauge("uptime_seconds", "Time since the switch started", uptime)?;
        let entries = [(Labels::new(), self.status.l2.len() as f64)];
        metrics.gauge("l2_entries", "Addresses in the forwarding table", entries)
    }

    fn pairs(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let pairs = || {
            self.status.traffic.iter().map(|pair| {
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
            self.status.workers.iter().map(move |worker| (labels(worker.index), worker))
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

    /// How much workers take at a time, and how long a round takes them; nothing for those that have had nothing to do.
    fn rounds(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let labels = |worker: &WorkerStatus| vec![("worker", worker.index.to_string())];
        let workers = || self.status.workers.iter().map(move |worker| (labels(worker), worker));
        let rounds = workers().map(|(labels, worker)| (labels, &worker.rounds));
        let help = "How long rounds took that found something to do";
        metrics.histogram("worker_round_seconds", help, rounds)?;
        let batches = workers().map(|(labels, worker)| (labels, &worker.batches));
        let help = "How many frames guests' batches had; a GSO packet is one";
        metrics.histogram("worker_batch_frames", help, batches)
    }

    fn ports(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let up = |port: &PortStatus| f64::from(u8::from(port.state == PortState::Running));
        let running = self.status.ports.iter().map(|port| (port_labels(port), up(port)));
        metrics.gauge("port_running", "1 while the guest's driver is running", running)?;
        let enabled = |port: &PortStatus| f64::from(port.queue_pairs_enabled);
        let pairs = self.status.ports.iter().map(|port| (port_labels(port), enabled(port)));
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
        let now = self.status.ports.iter().map(|port| (port_labels(port), now(port)));
        let help = "1 from when a front-end is cut off until another one comes";
        metrics.gauge("port_quarantined", help, now)?;
        let times = self.status.ports.iter().flat_map(|port| {
            port.quarantines.iter().filter(|&(_, &n)| n > 0).map(|(reason, &n)| {
                let labels = port_labels(port).into_iter().chain([("reason", reason.clone())]);
                (labels.collect::<Labels>(), n)
            })
        });
        metrics.counter("port_quarantines", "Front-ends cut off, by cause", times)
    }

    fn work(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let all = || {
            let worker = |index: usize| ("worker", index.to_string());
            let ports = self.status.ports.iter().map(move |port| {
                (vec![("port", port.name.clone()), worker(port.worker)], port.work)
            });
            ports.chain(self.status.uplinks.iter().map(move |uplink| {
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
        let (mut sums, mut samples) = (Vec::new(), Vec::new());
        let mut add = |labels: &Labels, drops: &Drops| {
            sums.push((labels.clone(), drops.values().sum::<u64>()));
            samples.extend(drops.iter().filter(|&(_, &n)| n > 0).map(|(reason, &n)| {
                let reason = ("reason", reason.clone());
                (labels.iter().cloned().chain([reason]).collect::<Labels>(), n)
            }));
        };
        for (labels, traffic) in self.directions() {
            add(&labels, &traffic.drops);
        }
        for port in &self.status.ports {
            let mut labels = port_labels(port);
            labels.extend([("queue", "none".to_owned()), ("direction", "rx".to_owned())]);
            add(&labels, &port.undelivered);
        }
        let help = "Frames dropped for any reason; they are not among the packets";
        metrics.counter("frames_dropped", help, sums)?;
        metrics.counter("drops", "Frames dropped, by reason; only what was", samples)
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
            self.status.uplinks.iter().map(move |uplink| (labels(uplink), &uplink.egress))
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
            let ports = self.status.ports.iter().filter(|port| has_offload(&port.offload));
            ports.map(move |port| (port_labels(port), value(&port.offload)))
        };
        let bit = |on: bool| f64::from(u8::from(on));
        let halves = self.status.ports.iter().flat_map(|port| {
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
        let help = "Bytes acknowledged to the guest and not yet by its peers";
        metrics.gauge("offload_owed_bytes", help, of(|offload| offload.owed as f64))?;
        let help = "Bytes of memory that frames stored by the TCP offload take";
        metrics.gauge("offload_stored_bytes", help, of(|offload| offload.stored_bytes as f64))?;
        let help = "What the TCP offload has done";
        let events = self.status.ports.iter().flat_map(|port| {
            port.offload.counters.iter().filter(|&(_, &n)| n > 0).map(|(event, &n)| {
                let mut labels = port_labels(port);
                labels.push(("event", event.clone()));
                (labels, n)
            })
        });
        metrics.counter("offload_events", help, events)
    }

    /// How long frames wait, and how long round trips take; nothing for ports that have none.
    fn durations(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let delays = self.status.ports.iter().map(|port| {
            let mut all = Histogram::default();
            port.queues.iter().for_each(|queue| all.add(&queue.rx.delay));
            (port_labels(port), Buckets::from(&all))
        });
        let help =
            "How long frames to the guest waited for its buffers, for their turn, or for the guest";
        metrics.histogram("port_queue_delay_seconds", help, delays)?;
        let rtts = self.status.ports.iter().map(|port| (port_labels(port), &port.offload.rtt));
        let help = "Round trips of connections whose congestion control the switch has taken over";
        metrics.histogram("offload_rtt_seconds", help, rtts)
    }

    /// How the link into the host is divided; nothing unless it is.
    fn inbound(&self, metrics: &mut Metrics<'_, '_>) -> fmt::Result {
        let Some(inbound) = self.inbound.as_ref().filter(|inbound| inbound.capacity_bps > 0) else {
            return Ok(());
        };
        let bytes = |bits: u64| bits as f64 / 8.0;
        let capacity = [(Labels::new(), bytes(inbound.capacity_bps))];
        let help = "Rate of the link into the host";
        metrics.gauge("inbound_capacity_bytes_per_second", help, capacity)?;
        let of = |value: fn(&InboundPort) -> f64| {
            let labels = |port: &InboundPort| vec![("port", port.name.clone())];
            inbound.ports.iter().map(move |port| (labels(port), value(port)))
        };
        let rate = of(|port| port.rate_bps as f64 / 8.0);
        metrics.gauge("inbound_rate_bytes_per_second", "Part of the link", rate)?;
        let help = "What arrived in the last 50 to 100 ms";
        let measured = of(|port| port.measured_bps as f64 / 8.0);
        metrics.gauge("inbound_measured_bytes_per_second", help, measured)?;
        metrics.gauge("inbound_weight", "Weight now", of(|port| f64::from(port.weight)))?;
        let help = "Connections that received data lately";
        metrics.gauge("inbound_active_connections", help, of(|port| f64::from(port.active)))?;
        let help = "Connections of which an ACK waits for its turn";
        metrics.gauge("inbound_waiting_connections", help, of(|port| port.waiting as f64))?;
        let received = inbound.ports.iter();
        let received =
            received.map(|port| (vec![("port", port.name.clone())], port.received_bytes));
        let help = "Bytes of the link that have arrived since it is divided";
        metrics.counter("inbound_received_bytes", help, received)?;
        let events = inbound.ports.iter().flat_map(|port| {
            port.counters
                .iter()
                .filter(|&(_, &n)| n > 0)
                .map(|(event, &n)| (vec![("port", port.name.clone()), ("event", event.clone())], n))
        });
        metrics.counter("inbound_events", "What the division has done; only what it has", events)
    }

    /// Each queue pair of each port.
    fn queues(&self) -> impl Iterator<Item = (Labels, &QueuePairStatus)> {
        self.status.ports.iter().flat_map(|port| {
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
        for uplink in &self.status.uplinks {
            let labels = vec![("uplink", uplink.name.clone())];
            all.push((directed(&labels, "rx"), &uplink.rx));
            all.push((directed(&labels, "tx"), &uplink.tx));
        }
        all
    }
}

/// It is on, or there is something left of it.
fn has_offload(offload: &OffloadStatus) -> bool {
    let OffloadStatus { transmit, receive, flows, stored_bytes, .. } = *offload;
    transmit || receive || flows > 0 || stored_bytes > 0
}

fn port_labels(port: &PortStatus) -> Labels {
    vec![("port", port.name.clone())]
}

fn directed(labels: &Labels, direction: &str) -> Labels {
    labels.iter().cloned().chain([("direction", direction.to_owned())]).collect()
}

/// A histogram as one sample: upper bounds, each with what is above the one before it, and the sum of all.
struct Buckets {
    counts: Vec<(f64, u64)>,
    sum: f64,
}

impl From<&Histogram> for Buckets {
    fn from(histogram: &Histogram) -> Self {
        let counts = bounds_s().zip(histogram.buckets.iter().copied()).collect();
        Self { counts, sum: histogram.sum_ns as f64 / 1e9 }
    }
}

impl From<&BatchSizes> for Buckets {
    fn from(sizes: &BatchSizes) -> Self {
        let last = sizes.buckets.len().saturating_sub(1);
        let bound =
            |index: usize| if index < last { (1_u64 << index) as f64 } else { f64::INFINITY };
        let counts = sizes.buckets.iter().enumerate().map(|(index, n)| (bound(index), *n));
        Self { counts: counts.collect(), sum: sizes.frames as f64 }
    }
}

impl Buckets {
    fn count(&self) -> u64 {
        self.counts.iter().map(|(_, n)| n).sum()
    }
}

impl EncodeMetric for Buckets {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.count(), &self.counts, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
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

    /// Those that have observed nothing are left out.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, impl Into<Buckets>)>,
    ) -> fmt::Result {
        let samples = samples.into_iter().filter_map(|(labels, sample)| {
            let buckets: Buckets = sample.into();
            (buckets.count() > 0).then_some((labels, buckets))
        });
        self.metric(name, help, MetricType::Histogram, samples)
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
