//! A port: what the pipeline and the vhost-user device share of one VM.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use floodway_core::l2::{MacTable, PortId, SourcePolicy, StormLimit};
use floodway_core::time::Instant;

use floodway_wire::ethernet;

use crate::config::PortConfig;
use crate::frame::Frame;
use crate::inbound::PortInbound;
use crate::rx::RxQueue;
use crate::stats::Traffic;
use crate::status::VcpuStatus;
use crate::tcp_offload::PortOffload;
use crate::tx::TxQueue;
use crate::worker::Waker;

/// The two rings of a queue pair.
///
/// Lock order: a transmit queue, then a port's offload, then its inbound clamp, then one of these: a receive queue, an uplink's
/// egress, the forwarding table. Never two of the same kind at once. So an offload may send what it has to
/// say while it is locked, whoever runs it: the port's worker (which holds the transmit queue), an
/// uplink's, the control socket; and nobody waits for an offload who holds what it may need.
pub struct QueuePair {
    rx: Mutex<RxQueue>,
    tx: Mutex<TxQueue>,
}

impl QueuePair {
    /// The receive queue (to the guest).
    #[inline]
    pub fn rx(&self) -> MutexGuard<'_, RxQueue> {
        lock(&self.rx)
    }

    /// The transmit queue (from the guest).
    #[inline]
    pub fn tx(&self) -> MutexGuard<'_, TxQueue> {
        lock(&self.tx)
    }
}

/// A panic elsewhere does not make a queue unusable: each is consistent between its calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One VM's port.
pub struct Port {
    /// Its number in the forwarding table.
    pub id: PortId,
    /// As configured.
    pub config: PortConfig,
    /// Which sources its guest may use.
    pub policy: SourcePolicy,
    /// Queue pairs, as many as are offered to the guest.
    pub pairs: Vec<QueuePair>,
    /// TCP offload.
    pub offload: PortOffload,
    /// Inbound rate.
    pub inbound: PortInbound,
    /// Flooded frames that the guest may send.
    pub storm: Mutex<StormLimit>,
    /// Frames to the guest that came to no queue, because none was running.
    pub undelivered: Mutex<Traffic>,
    /// Receive queues that run, counted from the first without a gap.
    rx_running: AtomicU16,
    connected: AtomicBool,
    features: AtomicU64,
    /// Frames wait in some receive queue.
    pub waiting: AtomicBool,
    /// How its VM's CPUs are scheduled; `None` if that is nobody's business.
    pub vcpu: Mutex<Option<VcpuStatus>>,
    /// The worker that serves it.
    pub waker: Arc<Waker>,
    table: Arc<RwLock<MacTable>>,
}

impl Port {
    /// A port without a guest.
    #[must_use]
    pub fn new(
        id: PortId,
        config: PortConfig,
        waker: Arc<Waker>,
        table: Arc<RwLock<MacTable>>,
    ) -> Self {
        let pair = || QueuePair {
            rx: Mutex::new(RxQueue::new(config.queue_bytes)),
            tx: Mutex::new(TxQueue::default()),
        };
        Self {
            id,
            policy: SourcePolicy { mac: config.mac, ips: config.ips.clone() },
            pairs: (0..config.queue_pairs).map(|_| pair()).collect(),
            offload: PortOffload::new(config.offload.clone()),
            inbound: PortInbound::default(),
            storm: Mutex::new(StormLimit::new(u64::from(config.storm_pps), Instant::ZERO)),
            undelivered: Mutex::default(),
            rx_running: AtomicU16::new(0),
            connected: AtomicBool::new(false),
            features: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            vcpu: Mutex::default(),
            waker,
            table,
            config,
        }
    }

    /// Receive queues that frames may be spread over; zero when no guest is running.
    #[inline]
    pub fn rx_running(&self) -> u16 {
        self.rx_running.load(Ordering::Acquire)
    }

    /// Counts the running receive queues anew, after one was started or stopped. A guest that comes
    /// brings its configured address into the table, where nobody else can take it; a guest that
    /// goes takes all its addresses with it, so that another host may announce them.
    pub fn update_rx_running(&self) {
        let n = self.pairs.iter().take_while(|pair| pair.rx().is_running()).count() as u16;
        let before = self.rx_running.swap(n, Ordering::AcqRel);
        if (before > 0) == (n > 0) {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.forget_port(self.id);
        if n > 0
            && let Some(mac) = self.config.mac
            && let Err(refusal) = table.pin(mac, self.id)
        {
            tracing::error!(port = self.config.name, ?refusal, "cannot pin the port's address");
        }
    }

    /// The frame is not larger than the port's MTU allows. Super-frames are cut or merged at the
    /// ends; only what goes out in one piece is measured.
    #[inline]
    #[must_use]
    pub fn admits(&self, frame: &Frame<'_>) -> bool {
        let fits =
            |header_len: u16| frame.len <= u32::from(self.config.mtu) + u32::from(header_len);
        fits(ethernet::HEADER_LEN as u16)
            || frame.vnet.is_gso()
            || ethernet::Header::parse(frame.prefix).is_ok_and(|tagged| fits(tagged.len))
    }

    /// A front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Notes whether a front-end is connected.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// The virtio features that the guest negotiated.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    /// Notes what the guest negotiated.
    pub fn set_features(&self, features: u64) {
        self.features.store(features, Ordering::Relaxed);
    }
}
