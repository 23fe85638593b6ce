//! What a store does all its life: it keeps what one broker gives it, and when that one has died gives it to the next.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floodway_process::channel::{Channel, ChannelError, Received};
use floodway_process::fault::{self, Point};
use floodway_process::message::{FromDataPlane, ToDataPlane};
use floodway_process::peer::Peer;
use floodway_process::store::{FromStore, Item, Key, STORE_VERSION, ToStore};

use super::PATIENCE;
use floodway_process::poll::wait_for;

/// Between two looks for a signal.
const LOOK: Duration = Duration::from_millis(500);
/// How long a broker that replaces itself may be away before it counts as gone.
const REPLACEMENT: Duration = Duration::from_secs(2);

type BrokerChannel = Channel<FromStore, ToStore>;

/// Keeps what the broker at the other end of `broker` gives it, and lets the next one connect to `listener`. Returns when the switch has stopped, or when `terminate` is
/// set while there is no broker.
///
/// # Errors
/// The listener is none, or a broker says what it may not.
pub fn serve(broker: OwnedFd, listener: OwnedFd, terminate: &AtomicBool) -> io::Result<()> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let broker = Some(Channel::from(broker));
    let mut server = Server { broker, items: Items::default(), tell_at: None };
    loop {
        let mut fds = vec![listener.as_fd()];
        fds.extend(server.broker.as_ref().map(AsFd::as_fd));
        wait_for(&fds, Some(LOOK));
        if server.hear().map_err(io::Error::other)? {
            return Ok(());
        }
        server.tell_data_plane();
        // One that came while a broker was there was for the whole group.
        if terminate.swap(false, Ordering::Relaxed) && server.broker.is_none() {
            return Ok(());
        }
        if let Ok((stream, _)) = listener.accept() {
            // Of the last broker everything was heard, if it has gone.
            if server.hear().map_err(io::Error::other)? {
                return Ok(());
            }
            server.welcome(stream);
        }
    }
}

struct Server {
    broker: Option<BrokerChannel>,
    items: Items,
    /// When the data plane is to be told that it has no broker.
    tell_at: Option<Instant>,
}

impl Server {
    /// Hears what the broker says. Returns `true` if nothing is to be kept any more.
    fn hear(&mut self) -> Result<bool, ChannelError> {
        while let Some(broker) = &self.broker {
            match broker.try_recv()? {
                Received::Nothing => break,
                Received::Closed => {
                    self.broker = None;
                    if !self.items.has(&Key::Store) {
                        // It was to replace another one, which goes on.
                        return Ok(true);
                    }
                    let away = if self.items.is_replacing() { REPLACEMENT } else { Duration::ZERO };
                    self.tell_at = Some(Instant::now() + away);
                    self.tell_data_plane();
                    fault::pass(Point::BrokerLost);
                }
                Received::Message(ToStore::Close, _) => return Ok(true),
                Received::Message(message, descriptors) => {
                    self.items.take(message, descriptors);
                    fault::pass(Point::ItemKept);
                }
            }
        }
        Ok(false)
    }

    /// Tells the data plane that it has no broker, when it is time.
    fn tell_data_plane(&mut self) {
        if self.broker.is_none() && self.tell_at.take_if(|at| Instant::now() >= *at).is_some() {
            self.items.say_that_nobody_is_there();
        }
    }

    /// Gives whoever has connected all items, if it may have them.
    fn welcome(&mut self, stream: UnixStream) {
        let own = rustix::process::geteuid().as_raw();
        if self.broker.is_some() || Peer::of(&stream).map_or(true, |peer| peer.uid != own) {
            return;
        }
        let channel = BrokerChannel::from(OwnedFd::from(stream));
        // One that does not read, or has gone, is not the next one.
        if channel.set_time_limit(Some(PATIENCE)).is_ok() && self.items.give(&channel).is_ok() {
            self.broker = Some(channel);
            fault::pass(Point::ItemsGiven);
        }
    }
}

/// Items, from the oldest to the newest.
#[derive(Debug, Default)]
struct Items(Vec<(Item, Vec<OwnedFd>)>);

impl Items {
    fn take(&mut self, message: ToStore, descriptors: Vec<OwnedFd>) {
        match message {
            ToStore::Keep(item) => {
                let key = item.key();
                self.0.retain(|(other, _)| other.key() != key);
                self.0.push((item, descriptors));
            }
            ToStore::Forget(Key::Port(port)) => {
                self.0.retain(|(item, _)| item.key().port() != Some(port));
            }
            ToStore::Forget(key) => self.0.retain(|(item, _)| item.key() != key),
            ToStore::ForgetEntries(port, keys) => self.0.retain(|(item, _)| {
                !matches!(item.key(), Key::Entry(of, key) if of == port && keys.contains(&key))
            }),
            ToStore::Close => {}
        }
    }

    fn has(&self, key: &Key) -> bool {
        self.0.iter().any(|(item, _)| item.key() == *key)
    }

    /// Returns `true` if the broker replaces itself.
    fn is_replacing(&self) -> bool {
        self.0.iter().any(|(item, _)| matches!(item, Item::Programs { replacing: true, .. }))
    }

    fn give(&self, channel: &BrokerChannel) -> Result<(), ChannelError> {
        channel.send(&FromStore::Version(STORE_VERSION), &[])?;
        for (item, descriptors) in &self.0 {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            channel.send(&FromStore::Item(item.clone()), &descriptors)?;
        }
        channel.send(&FromStore::All, &[])
    }

    /// Tells the data plane that it has no broker.
    fn say_that_nobody_is_there(&self) {
        let data_plane = self.0.iter().find(|(item, _)| item.key() == Key::DataPlane);
        let Some(channel) = data_plane.and_then(|(_, files)| files.first()?.try_clone().ok())
        else {
            return;
        };
        let channel = Channel::<ToDataPlane, FromDataPlane>::from(channel);
        // Its time limit is what the broker has set. Who has ended does not want to know.
        let _ = channel.send(&ToDataPlane::Broker { pid: 0 }, &[]);
    }
}
