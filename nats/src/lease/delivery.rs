//! What the reply subject of a delivered message tells.

use async_nats::Message;
use chrono::{DateTime, Utc};

/// One delivery of one message of a stream to one holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The subject to acknowledge on.
    pub reply: String,
    /// The stream the message is in.
    pub stream: String,
    /// The consumer that delivered it.
    pub consumer: String,
    /// How often it was delivered, this time included: the fence between two holders. Starts at 1
    /// again when the consumer was deleted and made again.
    pub delivered: u64,
    /// Its sequence in the stream.
    pub stream_seq: u64,
    /// The sequence of this delivery in the consumer; without gaps unless deliveries were lost.
    pub consumer_seq: u64,
    /// When the stream stored it, by the server's clock.
    pub stored_at: DateTime<Utc>,
    /// Messages that the consumer has yet to deliver.
    pub pending: u64,
}

impl Delivery {
    /// Reads a delivered message; none when it was not delivered by a consumer.
    pub fn of(message: &Message) -> Option<Self> {
        Self::parse(message.reply.as_deref()?)
    }

    /// Reads `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>`,
    /// also with `<domain>.<account>` before the stream and anything after.
    pub fn parse(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let rest = match tokens.len() {
            7 => tokens.as_slice(),
            9.. => tokens.get(2..)?,
            _ => return None,
        };
        let number = |at: usize| rest.get(at)?.parse::<u64>().ok();
        let nanos = i64::try_from(number(5)?).ok()?;
        Some(Self {
            reply: reply.to_owned(),
            stream: (*rest.first()?).to_owned(),
            consumer: (*rest.get(1)?).to_owned(),
            delivered: number(2)?,
            stream_seq: number(3)?,
            consumer_seq: number(4)?,
            stored_at: DateTime::from_timestamp_nanos(nanos),
            pending: number(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_reply_subject_are_read() {
        let short = Delivery::parse("$JS.ACK.S.con.2.17.9.1700000000123456789.4").unwrap();
        assert_eq!((short.stream.as_str(), short.consumer.as_str()), ("S", "con"));
        assert_eq!((short.delivered, short.stream_seq, short.consumer_seq), (2, 17, 9));
        assert_eq!(short.stored_at.timestamp_millis(), 1_700_000_000_123);
        assert_eq!(short.pending, 4);
        for long in [
            "$JS.ACK._.ACC.S.con.2.17.9.1700000000123456789.4",
            "$JS.ACK.hub.ACC.S.con.2.17.9.1700000000123456789.4.x7",
        ] {
            let read = Delivery::parse(long).unwrap();
            assert_eq!(Delivery { reply: short.reply.clone(), ..read }, short);
        }
    }

    #[test]
    fn other_subjects_are_no_deliveries() {
        for other in ["_INBOX.a.b", "$JS.ACK.S.c.1.2.3.4", "$JS.ACK.S.c.x.2.3.4.5", "$JS.ACK."] {
            assert_eq!(Delivery::parse(other), None, "{other}");
        }
    }
}
