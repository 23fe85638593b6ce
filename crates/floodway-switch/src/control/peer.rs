//! Who is at the other end of a connection, and what is whose business.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;

/// User of the process at the other end; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) Option<u32>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok().map(|peer| peer.uid()))
    }
}

/// Returns `true` if the user `uid` may change, or look into, what belongs to `owner`.
pub(super) fn may(uid: Option<u32>, owner: u32) -> bool {
    uid.is_some_and(|uid| uid == 0 || uid == owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_change_or_see_anything() {
        let allowed = [Some(0), Some(7), Some(1), Some(u32::MAX), None].map(|uid| may(uid, 7));
        assert_eq!(allowed, [true, true, false, false, false]);
    }
}
