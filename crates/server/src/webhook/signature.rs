//! Signatures of the Standard Webhooks scheme, which OpenAI's SDK verifies.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The value of `webhook-signature`: one `v1,BASE64` for each key, since a secret that was rotated may be valid for
/// a while beside its successor.
pub(super) fn sign<'k>(
    keys: impl IntoIterator<Item = &'k [u8]>,
    id: &str,
    timestamp: i64,
    body: &str,
) -> String {
    let signed = format!("{id}.{timestamp}.{body}");
    let one = |key| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(signed.as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    keys.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_as_the_published_example_of_standard_webhooks() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signature = sign([&key[..]], id, 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let two = sign([&key[..], b"other"], id, 1_614_265_330, "{}");
        assert_eq!(two.split(' ').filter(|one| one.starts_with("v1,")).count(), 2);
    }
}
