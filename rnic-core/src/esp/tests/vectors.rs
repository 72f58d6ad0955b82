//! Packets that others have sealed: examples of the RFCs, and those of OpenSSL, by way of Python's
//! `cryptography` and `hmac`, with the IVs that this side would choose.

use super::hex;
use crate::esp::cipher::transform::Forged;
use crate::esp::cipher::{Label, cipher};
use crate::esp::{Algorithm, Keys};

/// Opens a packet. Returns what is between IV and ICV.
fn open(
    algorithm: Algorithm,
    keys: &Keys,
    label: &Label,
    packet: &[u8],
) -> Result<Vec<u8>, Forged> {
    let cipher = cipher(algorithm, keys).unwrap();
    let shape = cipher.shape();
    let mut packet = packet.to_vec();
    cipher.open(label, &mut packet, &mut Vec::new())?;
    Ok(packet[shape.iv..packet.len() - shape.icv].to_vec())
}

#[test]
fn examples_of_documents_are_opened() {
    // draft-mcgrew-gcm-test-01, with ESN.
    let gcm = (
        Algorithm::AesGcm,
        "4c80cdefbb5d10da906ac73c3613a634 2e443b68",
        Label {
            spi: 0x4321,
            number: 0x8765_4321_0000_0000,
            extended: true,
        },
        "4956ed7e3b244cfe \
         fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1\
         f4a13c5d15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f75\
         6470037369700963796265726369747902646b000021000101020201",
    );
    // RFC 7634 appendix A.
    let chacha = (
        Algorithm::ChaCha20Poly1305,
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3",
        Label {
            spi: 0x0102_0304,
            number: 5,
            extended: false,
        },
        "1011121314151617 \
         24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95df\
         ab4c02f72aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0\
         76aaa8266b7fb0f7b11b369907e1ad43",
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f\
         101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f30313233343536370102\
         0204",
    );
    for (algorithm, key, label, packet, text) in [gcm, chacha] {
        let keys = Keys::new(hex(key), Vec::new());
        let opened = open(algorithm, &keys, &label, &hex(packet));
        assert_eq!(opened, Ok(hex(text)), "{algorithm}");
    }
}

#[test]
fn the_example_of_cbc_is_decrypted() {
    // RFC 3602 section 4, case 5, which has no ICV: one is put behind it.
    let mut packet = hex("e96e8c08ab465763fd098d45dd3ff893 \
         f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a\
         8e4b7e52775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6");
    let text = "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021\
         22232425262728292a2b2c2d2e2f30313233343536370102030405060708090a0b0c0d0e0e01";
    let label = Label {
        spi: 0x4321,
        number: 1,
        extended: false,
    };
    let integrity = vec![7; 32];
    let keys = Keys::new(hex("90d382b410eeba7ad938c46cec1a82bf"), integrity.clone());
    packet.extend([0; 16]);
    let authenticator =
        cipher(Algorithm::NullHmacSha256, &Keys::new(Vec::new(), integrity)).unwrap();
    authenticator.seal(&label, &mut packet, &mut Vec::new());
    let opened = open(Algorithm::AesCbcHmacSha256, &keys, &label, &packet);
    assert_eq!(opened, Ok(hex(text)));
}

/// What OpenSSL made of the number 2^32 + 7 of SPI 01020304: algorithm, octets of the key, whether
/// with ESN, and the packet. The salt is aabbccdd, the key counts from 0, that of HMAC from 100.
const FIGURES: [(Algorithm, usize, bool, &str); 12] = [
    (
        Algorithm::AesGcm,
        16,
        true,
        "00000001000000071187e6031a4b74f68bc6bf0b1d96f53d23b47e495460d0d0dc5e663caefc586ef98c8fd6\
         13cc9cb9",
    ),
    (
        Algorithm::AesGcm,
        16,
        false,
        "00000001000000071187e6031a4b74f68bc6bf0b1d96f53d23b47e495460d0d0ea13ab2f4706b8ef420d9f10\
         09d23c57",
    ),
    (
        Algorithm::AesGcm,
        32,
        true,
        "00000001000000073e31e84440c89f0f62444723654e2d53a0901be485b2d2fb017a1c2fe7681a0a91d24d33\
         78eecfe2",
    ),
    (
        Algorithm::AesGcm,
        32,
        false,
        "00000001000000073e31e84440c89f0f62444723654e2d53a0901be485b2d2fbdaba6abd7929ff415b48ad1f\
         d5e056a8",
    ),
    (
        Algorithm::AesGmac,
        16,
        true,
        "00000001000000070102030405060708090a0b0c0d0e0f1011121314151600064f04ee7bbb7011b144354b3b\
         c4407a66",
    ),
    (
        Algorithm::AesGmac,
        32,
        true,
        "00000001000000070102030405060708090a0b0c0d0e0f101112131415160006be4b2babe526e81d281034a1\
         6e2dcda9",
    ),
    (
        Algorithm::ChaCha20Poly1305,
        32,
        true,
        "0000000100000007222df6a4142fd11e41fd540dfbda0c696f544b05db2e7c1547be29c93ebba22980a507d3\
         5f8230c9",
    ),
    (
        Algorithm::AesCbcHmacSha256,
        16,
        true,
        "bbf9f7ff5134073c4069519066901d9d0a975e83874c4249daad02f9289138f427ec07ad7639b0c2174dafec\
         c0913f7a7af4d26f827970774d8546e0b94d4bdf",
    ),
    (
        Algorithm::AesCbcHmacSha256,
        32,
        true,
        "eaa8cdea02c9c754896dd8ba0bf7df47b2a861d4ecbf139baa222be7de0c2ea5c8b69a3daf009b23fceb5f16\
         37e72ac2bfa5c6ed6939d691ac4009c0d03d720e",
    ),
    (
        Algorithm::AesCbcHmacSha1,
        16,
        true,
        "bbf9f7ff5134073c4069519066901d9d0a975e83874c4249daad02f9289138f427ec07ad7639b0c2174dafec\
         c0913f7a9595a34fed7336b0dcaec051",
    ),
    (
        Algorithm::NullHmacSha256,
        0,
        true,
        "0102030405060708090a0b0c0d0e0f101112131415160006e93cd9fe65d24a96e8f8c71558d0062e",
    ),
    (
        Algorithm::NullHmacSha1,
        0,
        false,
        "0102030405060708090a0b0c0d0e0f101112131415160006b782ab5830ac11108782a87b",
    ),
];

/// The keys of a figure.
fn keys(algorithm: Algorithm, len: usize) -> Keys {
    let counted = |from: u8, len: usize| (from..).take(len).collect::<Vec<_>>();
    let mut encryption = counted(0, len);
    let integrity = match algorithm {
        Algorithm::AesCbcHmacSha256 | Algorithm::NullHmacSha256 => counted(100, 32),
        Algorithm::AesCbcHmacSha1 | Algorithm::NullHmacSha1 => counted(100, 20),
        _ => {
            encryption.extend([0xaa, 0xbb, 0xcc, 0xdd]);
            Vec::new()
        }
    };
    Keys::new(encryption, integrity)
}

#[test]
fn another_library_seals_the_same_octets() {
    // rfc: 7146-3, 7146-6, 7146-7, 7146-9, 7146-11, 7146-13, 7146-14, 7146-15, 7146-16, 7146-28
    for (algorithm, len, extended, figure) in FIGURES {
        let label = Label {
            spi: 0x0102_0304,
            number: 0x1_0000_0007,
            extended,
        };
        let keys = keys(algorithm, len);
        let cipher = cipher(algorithm, &keys).unwrap();
        let shape = cipher.shape();
        let figure = hex(figure);
        let text = figure.len() - shape.iv - shape.icv;
        let text: Vec<u8> = (1..).take(text - 2).chain([0, 6]).collect();
        let mut packet = vec![0; shape.iv];
        packet.extend(&text);
        packet.resize(figure.len(), 0);
        cipher.seal(&label, &mut packet, &mut Vec::new());
        assert_eq!(packet, figure, "{algorithm}, key of {len} octets");
        assert_eq!(open(algorithm, &keys, &label, &figure), Ok(text));
    }
}

#[test]
fn each_changed_bit_is_found() {
    for (algorithm, len, extended, figure) in FIGURES {
        let label = Label {
            spi: 0x0102_0304,
            number: 0x1_0000_0007,
            extended,
        };
        let (keys, figure) = (keys(algorithm, len), hex(figure));
        for bit in 0..figure.len() * 8 {
            let mut changed = figure.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(algorithm, &keys, &label, &changed), Err(Forged));
        }
        let mut others = vec![
            Label { spi: 1, ..label },
            Label {
                number: label.number + 1,
                ..label
            },
        ];
        let elsewhere = Label {
            number: label.number + (1 << 32),
            ..label
        };
        match extended {
            // The upper half is authenticated though it is not sent.
            true => others.push(elsewhere),
            false => assert!(open(algorithm, &keys, &elsewhere, &figure).is_ok()),
        }
        for other in others {
            assert_eq!(open(algorithm, &keys, &other, &figure), Err(Forged));
        }
    }
}

#[test]
fn keys_of_a_wrong_length_are_refused_and_none_is_shown() {
    let refused = |algorithm, encryption: usize, integrity: usize| {
        let keys = Keys::new(vec![1; encryption], vec![1; integrity]);
        cipher(algorithm, &keys).err().map(|error| error.bits)
    };
    // 192 bits are no option of RFC 8221.
    assert_eq!(refused(Algorithm::AesGcm, 24 + 4, 0), Some(28 * 8));
    assert_eq!(refused(Algorithm::AesGcm, 16, 0), Some(128));
    assert_eq!(refused(Algorithm::AesGcm, 0, 0), Some(0));
    assert_eq!(refused(Algorithm::ChaCha20Poly1305, 32, 0), Some(256));
    assert_eq!(refused(Algorithm::AesGmac, 3, 0), Some(24));
    assert_eq!(refused(Algorithm::AesCbcHmacSha256, 24, 32), Some(256));
    assert_eq!(refused(Algorithm::AesCbcHmacSha1, 16, 16), Some(128));
    assert_eq!(refused(Algorithm::NullHmacSha1, 0, 19), Some(19 * 8));

    let keys = Keys::new(vec![0xab; 20], vec![0xcd; 20]);
    assert_eq!(format!("{keys:?}"), "Keys");
    assert!(!keys.are_hidden() && Keys::new(vec![0; 20], Vec::new()).are_hidden());
    assert!(keys.share_with(&Keys::new(vec![0xab; 20], Vec::new())));
    assert!(!keys.share_with(&Keys::new(vec![0xcd; 20], Vec::new())));
}
