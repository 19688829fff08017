package gitssh

import (
	"slices"

	"golang.org/x/crypto/ssh"
)

// Algorithms are the names of the algorithms that clients may use (RFC 4253, section 7.1). An empty list means the
// default.
type Algorithms struct {
	KeyExchanges []string
	Ciphers      []string
	// MACs are for ciphers without built-in authentication; AES-GCM and ChaCha20-Poly1305 need none.
	MACs []string
}

// DefaultAlgorithms returns the default algorithms. The ciphers are AES in Galois/Counter Mode, for which CPUs have
// instructions; OpenSSH prefers ChaCha20-Poly1305, at ten times the cost. MACs depend on the ciphers: see WithDefaults.
func DefaultAlgorithms() Algorithms {
	return Algorithms{
		KeyExchanges: []string{
			ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519, ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384,
			ssh.KeyExchangeECDHP521, ssh.KeyExchangeDH16SHA512,
		},
		Ciphers: []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM},
	}
}

// SupportedAlgorithms returns all supported algorithms.
func SupportedAlgorithms() Algorithms {
	a := ssh.SupportedAlgorithms()
	return Algorithms{KeyExchanges: a.KeyExchanges, Ciphers: a.Ciphers, MACs: a.MACs}
}

// authenticated are the ciphers that need no MAC.
var authenticated = []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305}

// WithDefaults returns a with the defaults for its empty lists. Clients too old for the default ciphers are too old for
// encrypt-then-MAC as well: a cipher in counter mode adds the plain HMACs after the better ones.
func (a Algorithms) WithDefaults() Algorithms {
	def := DefaultAlgorithms()
	if len(a.KeyExchanges) == 0 {
		a.KeyExchanges = def.KeyExchanges
	}
	if len(a.Ciphers) == 0 {
		a.Ciphers = def.Ciphers
	}
	if len(a.MACs) == 0 {
		a.MACs = []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM}
		if slices.ContainsFunc(a.Ciphers, func(c string) bool { return !slices.Contains(authenticated, c) }) {
			a.MACs = append(a.MACs, ssh.HMACSHA256, ssh.HMACSHA512)
		}
	}
	return a
}

// userKeys are the kinds of signatures that clients may authenticate with.
var userKeys = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}
