//! Events: an answer that goes on, in messages of `text/event-stream`.

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response};

use super::route::given;
use super::{ClientError, ControlClient};
use crate::events::EventQuery;

/// Longest message that is read.
const MAX_MESSAGE: usize = 1 << 20;

impl ControlClient {
    /// Calls `each` with the document of each event, until it returns `false` or the answer is over: at once after the events that are kept if `query` does not follow,
    /// and otherwise when the switch ends. A document is JSON: an [`Event`](crate::events::Event).
    ///
    /// # Errors
    /// There is no answer, the switch refuses, or it ends in the middle of an answer.
    pub fn events(
        &self,
        query: &EventQuery,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<(), ClientError> {
        self.follow((&Method::GET, &route(query)), Bytes::new(), async |answer| {
            self.read_messages(answer, &mut each).await
        })
    }

    async fn read_messages(
        &self,
        answer: Response<Incoming>,
        each: &mut impl FnMut(&str) -> bool,
    ) -> Result<(), ClientError> {
        let mut body = answer.into_body();
        let mut messages = Messages::default();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| self.bad_answer(format!("events break off: {error}")))?;
            messages.0.extend(frame.into_data().unwrap_or_default());
            if !std::iter::from_fn(|| messages.next()).all(|data| each(&data)) {
                return Ok(());
            }
            if messages.0.len() > MAX_MESSAGE {
                return Err(self.bad_answer(format!("an event of over {MAX_MESSAGE} bytes")));
            }
        }
        Ok(())
    }
}

/// The route of what `query` asks for.
fn route(query: &EventQuery) -> String {
    let since = query.since.map(|id| id.to_string());
    let follow = query.follow.map(|follow| follow.to_string());
    let fields = given([("port", &query.port), ("since", &since), ("follow", &follow)]);
    format!("/v1/events?{fields}")
}

/// What has been read and not taken.
#[derive(Default)]
struct Messages(Vec<u8>);

impl Messages {
    /// The data of the next message that is complete and has some. Comments and other fields are left out: the document has all that they say.
    fn next(&mut self) -> Option<String> {
        loop {
            let end = self.0.windows(2).position(|pair| pair == b"\n\n")?;
            let message: Vec<u8> = self.0.drain(..end + 2).collect();
            let message = String::from_utf8_lossy(&message);
            let data = message.lines().filter_map(|line| line.strip_prefix("data:"));
            let data: Vec<_> = data.map(|data| data.strip_prefix(' ').unwrap_or(data)).collect();
            if !data.is_empty() {
                return Some(data.join("\n"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_put_together_from_pieces() {
        let text = ": comment\n\nid: 1-2\nevent: lost\ndata: {\"a\":1}\n\ndata: x\ndata: y\n\nda";
        let mut messages = Messages::default();
        let mut got = Vec::new();
        for byte in text.bytes() {
            messages.0.push(byte);
            got.extend(messages.next());
        }
        assert_eq!(got, ["{\"a\":1}", "x\ny"]);
        assert_eq!(messages.0, b"da");
    }

    #[test]
    fn a_query_is_written_into_the_route() {
        assert_eq!(route(&EventQuery::default()), "/v1/events?");
        let since = "5-6".parse().ok();
        let query = EventQuery { port: Some("a b".into()), since, follow: Some(false) };
        assert_eq!(route(&query), "/v1/events?port=a%20b&since=5-6&follow=false");
    }
}
