package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// certificateSignatures are the accepted signature algorithms of authorities. SHA-1 is not among them.
var certificateSignatures = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

const sourceAddress = "source-address"

// certificate returns the identity of a certificate: the login name if it is one of the principals, and otherwise the
// first principal.
func (r *keyring) certificate(login string, cert *ssh.Certificate, from netip.Addr,
	now time.Time) (id Identity, err error) {
	fail := func(format string, args ...any) (Identity, error) {
		return id, unknownKey(format, args...)
	}
	if cert.CertType != ssh.UserCert {
		return fail("the certificate is not for a user")
	}
	if r.revoked.content.certificate(cert) {
		return fail("the certificate is revoked")
	}
	if r.authority.err != nil {
		return id, unreadableKeys(r.authority.err)
	}
	wire := string(cert.SignatureKey.Marshal())
	lines := r.authority.content.authorities[wire]
	if len(lines) == 0 {
		if r.authorized.err != nil {
			return id, unreadableKeys(r.authorized.err)
		}
		if lines = r.authorized.content.authorities[wire]; len(lines) == 0 {
			return fail("the certificate is signed by an unknown authority")
		}
	}
	if !slices.Contains(certificateSignatures, cert.Signature.Format) {
		return fail("the certificate is signed with %.40q, which is not accepted", cert.Signature.Format)
	}
	if len(cert.ValidPrincipals) == 0 {
		return fail("the certificate has no principal")
	}
	checker := ssh.CertChecker{SupportedCriticalOptions: []string{sourceAddress}, Clock: func() time.Time { return now }}
	if err := checker.CheckCert(cert.ValidPrincipals[0], cert); err != nil {
		return fail("%s", strings.TrimPrefix(err.Error(), "ssh: "))
	}
	if list, ok := cert.CriticalOptions[sourceAddress]; ok {
		if pattern, err := parseAddressPattern(list); err != nil || !pattern.match(from) {
			return fail("the certificate is not valid for this address")
		}
	}
	name, err := nameOf(lines, cert, login, from, now)
	if err != nil {
		return id, err
	}
	if err := CheckName(name); err != nil {
		return fail("the certificate has the principal %.80q, which is not a valid user name", name)
	}
	return Identity{Name: name, By: ByCertificate, Credential: ssh.FingerprintSHA256(cert.Key)}, nil
}

// nameOf returns the user of a certificate with a valid signature: a principal if the authority is for all users, and
// otherwise the user whose line names the authority.
func nameOf(lines []grantee, cert *ssh.Certificate, login string, from netip.Addr, now time.Time) (string, error) {
	var own []grantee
	for _, g := range lines {
		if g.name == "" {
			if slices.Contains(cert.ValidPrincipals, login) {
				return login, nil
			}
			return cert.ValidPrincipals[0], nil
		}
		principals := g.principals
		if len(principals) == 0 {
			principals = []string{g.name}
		}
		if slices.ContainsFunc(principals, func(p string) bool { return slices.Contains(cert.ValidPrincipals, p) }) {
			own = append(own, g)
		}
	}
	if len(own) == 0 {
		return "", unknownKey("the certificate has no principal that its authority may sign for")
	}
	g, err := choose(own, login, from, now)
	if err != nil {
		return "", err
	}
	return g.name, nil
}

// revocations are revoked keys and certificates. Each line is a public key, a fingerprint ("SHA256:..."), or, for
// certificates, "serial: 7", "serial: 7-9" or "id: NAME" (ssh-keygen(1), "KEY REVOCATION LISTS").
type revocations struct {
	keys    map[string]bool // by fingerprint
	serials [][2]uint64     // from, to
	ids     map[string]bool
}

func readRevoked(path string) (r *revocations, size int, err error) {
	r = &revocations{keys: map[string]bool{}, ids: map[string]bool{}}
	text, err := readKeyFile(path)
	if bytes.HasPrefix(text, []byte("SSHKRL")) {
		return nil, 0, fault.New(fault.Invalid,
			"binary revocation lists (KRL) are not supported: write keys or fingerprints as lines of text")
	}
	for number, line := range keyLines(text) {
		if err := r.add(line); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return r, len(text), err
}

func (r *revocations) add(line string) error {
	word, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch strings.ToLower(word) {
	case "sha256":
		value, _, _ = strings.Cut(strings.TrimPrefix(value, "SHA256:"), " ")
		if sum, err := base64.RawStdEncoding.DecodeString(value); err != nil || len(sum) != sha256.Size {
			return fault.New(fault.Invalid, "%.80q is not a SHA256 fingerprint", value)
		}
		r.keys["SHA256:"+value] = true
		return nil
	case "id":
		r.ids[value] = true
		return nil
	case "serial":
		low, high, both := strings.Cut(value, "-")
		if !both {
			high = low
		}
		from, err := strconv.ParseUint(strings.TrimSpace(low), 0, 64)
		to, err2 := strconv.ParseUint(strings.TrimSpace(high), 0, 64)
		if err != nil || err2 != nil || from > to {
			return fault.New(fault.Invalid, "%.40q is not a serial number or a range of them", value)
		}
		r.serials = append(r.serials, [2]uint64{from, to})
		return nil
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(strings.TrimPrefix(line, "key: ")))
	if err != nil {
		return fault.New(fault.Invalid, "not a public key, SHA256 fingerprint, \"serial:\" or \"id:\"")
	}
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	r.keys[ssh.FingerprintSHA256(key)] = true
	return nil
}

func (r *revocations) key(key ssh.PublicKey) bool { return r.keys[ssh.FingerprintSHA256(key)] }

// certificate reports whether a certificate, its key or its authority is revoked.
func (r *revocations) certificate(cert *ssh.Certificate) bool {
	return r.key(cert.Key) || r.key(cert.SignatureKey) || r.ids[cert.KeyId] ||
		slices.ContainsFunc(r.serials, func(s [2]uint64) bool { return s[0] <= cert.Serial && cert.Serial <= s[1] })
}
