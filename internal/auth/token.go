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

// A token is "phk_", and then in 45 letters and digits (base32, lower case) 24 random bytes and a CRC-32 of them and
// the prefix. The prefix is for those who look for secrets in places where they should not be; the checksum tells them,
// and us, a token from what resembles one.
//
// What is kept of a token is its SHA-256. A slow hash would add nothing: it is for passwords, of which there are few
// enough to be tried one after the other, and 192 random bits cannot be tried however fast each try is. It would cost
// though: every request brings its token, and whoever sends wrong ones would make the server work.
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

// isToken tells what has the form of a token.
func isToken(s string) bool {
	if len(s) != tokenLength || !strings.HasPrefix(s, tokenPrefix) {
		return false
	}
	p, err := tokenEncoding.DecodeString(s[len(tokenPrefix):])
	return err == nil && binary.BigEndian.Uint32(p[tokenRandom:]) == tokenSum(p[:tokenRandom])
}

// hashToken is what is kept of a token.
func hashToken(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// HoldsToken tells whether there is a token in a text, whole and well formed.
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

// Redact blots out tokens in what a client sent and a log is to show: people do paste them into the wrong place.
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
