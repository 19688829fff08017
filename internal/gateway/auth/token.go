package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// A token is "phk_" and 45 letters and digits (base32, lower case) with 24 random bytes and a CRC-32 of prefix and
// bytes. Scanners for leaked secrets find the prefix, and the checksum excludes texts that only look like a token.
//
// The server stores the SHA-256 of a token. A slow hash protects passwords, which can be guessed. 192 random bits
// cannot, and a slow hash for each request would let wrong tokens load the server.
const (
	tokenPrefix = "phk_"
	tokenRandom = 24
	tokenLength = len(tokenPrefix) + 45
)

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newToken makes a token.
func newToken() string {
	secret := make([]byte, tokenRandom, tokenRandom+4)
	rand.Read(secret) // never fails
	return tokenPrefix + tokenEncoding.EncodeToString(binary.BigEndian.AppendUint32(secret, tokenSum(secret)))
}

func tokenSum(secret []byte) uint32 {
	return crc32.ChecksumIEEE(append([]byte(tokenPrefix), secret...))
}

// isToken reports whether a text has the form of a token.
func isToken(s string) bool {
	if len(s) != tokenLength || !strings.HasPrefix(s, tokenPrefix) {
		return false
	}
	p, err := tokenEncoding.DecodeString(s[len(tokenPrefix):])
	return err == nil && binary.BigEndian.Uint32(p[tokenRandom:]) == tokenSum(p[:tokenRandom])
}

// hashToken returns the stored hash of a token.
func hashToken(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// HoldsToken reports whether a text contains a complete token.
func HoldsToken(s string) bool {
	for i := 0; ; i++ {
		at := strings.Index(s[i:], tokenPrefix)
		if at < 0 {
			return false
		}
		if i += at; i+tokenLength <= len(s) && isToken(s[i:i+tokenLength]) {
			return true
		}
	}
}

// Redact replaces the secret part of tokens, also incomplete ones, in a text for a log. Users paste tokens into the
// wrong places.
func Redact(s string) string {
	if !strings.Contains(s, tokenPrefix) {
		return s
	}
	p := []byte(s)
	for i := 0; i < len(p); {
		at := bytes.Index(p[i:], []byte(tokenPrefix))
		if at < 0 {
			break
		}
		i += at + len(tokenPrefix)
		for ; i < len(p) && ('a' <= p[i] && p[i] <= 'z' || '2' <= p[i] && p[i] <= '7'); i++ {
			p[i] = '*'
		}
	}
	return string(p)
}
