package auth

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// KeyOptions says which files tell whose an SSH key is.
type KeyOptions struct {
	// Authorized is a file in the format of authorized_keys (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"), where a line's comment is the name of its
	// user, or a directory with such a file for each user, who is called as the file is.
	Authorized string
	Authority  string // file with the public keys of those who sign users' certificates
	Revoked    string // file with what is no longer good; see revocations
	Log        *slog.Logger
	Now        func() time.Time // nil: time.Now
}

// Keys says whose an SSH key or certificate is. Its files are looked at again when it is asked, once a second at the most. Safe for concurrent use.
//
// A file of authorized keys that cannot be read any more leaves what it said before; what is revoked meanwhile is revoked. Without the file of
// revoked keys no key is good.
type Keys struct {
	o KeyOptions

	mu      sync.Mutex
	checked time.Time
	state   string // of the files when they were read; "" to read them again
	ring    *keyring
	broken  string // what was wrong with the files, as the log knows it
}

// keyring is what the files say. Immutable.
type keyring struct {
	users       map[string][]grantee // by the key as it goes over the wire
	authorities map[string][]grantee // keys that sign certificates; a grantee without a name: for everybody
	revoked     *revocations
}

// grantee is one line: who may come in with its key.
type grantee struct {
	name       string
	restricted bool // to the addresses of from
	from       addressPattern
	expires    time.Time // zero: never
	principals []string  // of a certificate, one of which it has to have; empty: the name
	noTouch    bool
}

const (
	maxKeyFile  = 16 << 20 // bytes of a file
	maxKeyFiles = 100_000  // files in a directory
	keyInterval = time.Second
	// keyClock is within which time two changes of a file may look like one.
	keyClock = 2 * time.Second
)

// LoadKeys reads the files for the first time; what is wrong with them as a whole is an error, single lines are only logged.
func LoadKeys(o KeyOptions) (*Keys, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keys{o: o}
	k.state, _ = k.look()
	ring, err := k.load()
	if err != nil {
		return nil, err
	}
	k.ring, k.checked = ring, o.Now()
	return k, nil
}

// Key tells who has a key or certificate, for a login name that may say which of several it is. It proves nothing: whoever calls has to have seen a
// signature. noTouch says that a security key need not have been touched. The error is of kind Unauthenticated.
func (k *Keys) Key(login string, key ssh.PublicKey, from netip.Addr) (id Identity, noTouch bool, err error) {
	now := k.o.Now()
	ring := k.current(now)
	if ring.revoked == nil {
		return id, false, unknownKey("the list of revoked keys cannot be read")
	}
	if err := checkStrength(key); err != nil {
		return id, false, err
	}
	if cert, ok := key.(*ssh.Certificate); ok {
		return ring.certificate(login, cert, from, now)
	}
	if ring.revoked.key(key) {
		return id, false, unknownKey("the key is revoked")
	}
	g, err := choose(ring.users[string(key.Marshal())], login, from, now)
	if err != nil {
		return id, false, err
	}
	return Identity{Name: g.name, By: "key", Credential: ssh.FingerprintSHA256(key), Address: from.String()}, g.noTouch, nil
}

// Revoked tells whether a key is no longer good, whoever knows it.
func (k *Keys) Revoked(key ssh.PublicKey) bool {
	revoked := k.current(k.o.Now()).revoked
	return revoked == nil || revoked.key(key)
}

func unknownKey(format string, args ...any) error {
	return fault.New(fault.Unauthenticated, format, args...)
}

// choose finds the line that lets somebody in. A key of several users is the one's who logs in by name.
func choose(lines []grantee, login string, from netip.Addr, now time.Time) (*grantee, error) {
	why := unknownKey("the key is not known")
	var found *grantee
	several := false
	for i := range lines {
		g := &lines[i]
		switch {
		case !g.expires.IsZero() && !now.Before(g.expires):
			why = unknownKey("the key has expired")
		case g.restricted && !g.from.match(from):
			why = unknownKey("the key is not for this address")
		case g.name == login:
			return g, nil
		case found == nil:
			found = g
		default:
			several = several || g.name != found.name
		}
	}
	switch {
	case several:
		return nil, unknownKey("the key is of several users; log in as one of them")
	case found == nil:
		return nil, why
	}
	return found, nil
}

// minRSA is the least length of an RSA key in bits.
const minRSA = 2048

func checkStrength(key ssh.PublicKey) error {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	if n := rsaBits(key); n > 0 && n < minRSA {
		return unknownKey("RSA keys have at least %d bits here; this one has %d", minRSA, n)
	}
	return nil
}

// current is the keyring of now.
func (k *Keys) current(now time.Time) *keyring {
	k.mu.Lock()
	defer k.mu.Unlock()
	if since := now.Sub(k.checked); since >= 0 && since < keyInterval {
		return k.ring
	}
	k.checked = now
	state, young := k.look()
	if state == k.state && k.state != "" {
		return k.ring
	}
	ring, err := k.load()
	if err != nil {
		if err.Error() != k.broken {
			k.broken = err.Error()
			k.o.Log.Error("the files of SSH keys cannot be read; what they said before holds", "error", err)
		}
		ring = k.ring
		if k.o.Revoked != "" {
			revoked, _ := readRevoked(k.o.Revoked) // nil if that is what is wrong: nobody comes in
			ring = &keyring{users: k.ring.users, authorities: k.ring.authorities, revoked: revoked}
		}
		k.ring, k.state = ring, ""
		return ring
	}
	if k.state != "" || k.broken != "" {
		k.o.Log.Info("the files of SSH keys were read again", "keys", len(ring.users), "authorities", len(ring.authorities))
	}
	k.ring, k.state, k.broken = ring, state, ""
	if young {
		k.state = ""
	}
	return ring
}

// look tells the state of the files; young says that another change could look the same.
func (k *Keys) look() (state string, young bool) {
	var b strings.Builder
	now := k.o.Now()
	note := func(path string, info fs.FileInfo, err error) {
		if err != nil {
			fmt.Fprintf(&b, "%s\x00%v\n", path, err)
			return
		}
		young = young || now.Sub(info.ModTime()) < keyClock
		fmt.Fprintf(&b, "%s\x00%d %d %o\n", path, info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	for _, path := range []string{k.o.Authorized, k.o.Authority, k.o.Revoked} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		note(path, info, err)
		if err != nil || !info.IsDir() {
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			note(path, nil, err)
		}
		for _, e := range entries {
			info, err := os.Stat(filepath.Join(path, e.Name()))
			note(e.Name(), info, err)
		}
	}
	return b.String(), young
}

// load reads all files.
func (k *Keys) load() (*keyring, error) {
	r := &keyring{users: map[string][]grantee{}, authorities: map[string][]grantee{}}
	var err error
	if r.revoked, err = readRevoked(k.o.Revoked); err != nil {
		return nil, err
	}
	if k.o.Authority != "" {
		text, err := readKeyFile(k.o.Authority)
		if err != nil {
			return nil, fmt.Errorf("the certificate authorities: %w", err)
		}
		for line, text := range keyLines(text) {
			key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
			if err == nil && len(options) > 0 {
				err = fault.New(fault.Invalid, "options have no meaning here")
			}
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", k.o.Authority, line, err)
			}
			wire := string(key.Marshal())
			r.authorities[wire] = append(r.authorities[wire], grantee{})
		}
	}
	return r, k.loadAuthorized(r)
}

func (k *Keys) loadAuthorized(r *keyring) error {
	if k.o.Authorized == "" {
		return nil
	}
	info, err := os.Stat(k.o.Authorized)
	if err != nil {
		return fmt.Errorf("the authorized keys: %w", err)
	}
	if !info.IsDir() {
		return k.loadUser(r, k.o.Authorized, "")
	}
	entries, err := os.ReadDir(k.o.Authorized)
	if err != nil {
		return fmt.Errorf("the authorized keys: %w", err)
	}
	if len(entries) > maxKeyFiles {
		return fault.New(fault.Invalid, "%s has more than %d files", k.o.Authorized, maxKeyFiles)
	}
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(k.o.Authorized, e.Name())
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") {
			continue
		}
		if err := CheckName(name); err != nil {
			k.o.Log.Warn("a file of authorized keys is not named as a user can be called; it is not used", "file", path, "error", err)
			continue
		}
		if err := k.loadUser(r, path, name); err != nil {
			k.o.Log.Warn("a file of authorized keys is not used", "file", path, "error", err)
		}
	}
	return nil
}

// loadUser reads one file; without a name each line's comment is it.
func (k *Keys) loadUser(r *keyring, path, name string) error {
	text, err := readKeyFile(path)
	if err != nil {
		return fmt.Errorf("the authorized keys: %w", err)
	}
	for number, line := range keyLines(text) {
		l, err := parseAuthorized(line, name)
		if err != nil {
			k.o.Log.Warn("a line of authorized keys is not used", "file", path, "line", number, "error", err)
			continue
		}
		to := r.users
		if l.authority {
			to = r.authorities
		}
		wire := string(l.key.Marshal())
		to[wire] = append(to[wire], l.grantee)
	}
	return nil
}

func readKeyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "%s is no file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fault.New(fault.Invalid, "%s is longer than %d bytes", path, maxKeyFile)
	}
	return text, err
}

// keyLines gives the lines that say something, by their numbers, from 1.
func keyLines(text []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			line = strings.TrimSpace(line)
			if line != "" && line[0] != '#' && !yield(number, line) {
				return
			}
		}
	}
}
