package auth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
	Authority  string   // file with the public keys of those who sign users' certificates
	Revoked    string   // file with what is no longer good; see revocations
	Sources    *Sources // the files are added; nil: to none
	Log        *slog.Logger
	Now        func() time.Time // nil: time.Now
}

// Keys says whose an SSH key or certificate is. Its files are looked at again when it is asked, once a second at the most. Safe for concurrent use.
//
// While a file is gone, cannot be read, or is empty where it was not before, nobody about whom it decides comes in
// (Unavailable): who knows which keys were taken out of it. Without the file of revoked keys that is everybody. Who
// means that nobody is left leaves a comment in the file.
type Keys struct {
	o                              KeyOptions
	authorized, authority, revoked *source // nil: not configured

	mu         sync.Mutex
	checked    time.Time
	state      string // of the files when they were read; "" to read them again
	ring       *keyring
	complaints []complaint // as the log has them
}

// complaint is about a file of several, or a line of one, that is not used.
type complaint struct {
	file  string
	line  int // from 1; 0: the file
	error string
}

// keyring is what the files say. Immutable. What a file said before it failed stays, to know about whom it decides; no
// key is good by it.
type keyring struct {
	authorized keyList
	authority  keyList
	revoked    *revocations
	revokedErr error
}

// keyList is what one file, or a directory of them, says.
type keyList struct {
	users       map[string][]grantee // by the key as it goes over the wire
	authorities map[string][]grantee // keys that sign certificates; a grantee without a name: for everybody
	bytes       int                  // of text
	lines, bad  int                  // that can be used; that cannot
	err         error                // why it cannot be used
}

func newKeyList() keyList {
	return keyList{users: map[string][]grantee{}, authorities: map[string][]grantee{}}
}

// after returns the list if it can come after another one, and that one with an error otherwise.
func (l keyList) after(before keyList, err error) keyList {
	switch {
	case err != nil:
	case l.bytes == 0 && before.bytes > 0:
		err = errEmptied
	case l.lines == 0 && l.bad > 0 && before.lines > 0:
		err = errors.New("no line can be used any more")
	default:
		return l
	}
	before.err = err
	return before
}

// errEmptied is what is wrong with a file without a byte, as a write that was cut short or a mount that is gone leaves
// behind.
var errEmptied = errors.New("it is empty, and was not before; leave a comment in it if nobody is meant")

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
	k.ring = k.load(&keyring{})
	if err := errors.Join(k.ring.authorized.err, k.ring.authority.err, k.ring.revokedErr); err != nil {
		return nil, err
	}
	k.checked = o.Now()
	if o.Sources == nil {
		return k, nil
	}
	look := func() { k.current(k.o.Now()) }
	for _, file := range []struct {
		path, name string
		source     **source
	}{
		{o.Authorized, SourceAuthorizedKeys, &k.authorized},
		{o.Authority, SourceUserCA, &k.authority},
		{o.Revoked, SourceRevokedKeys, &k.revoked},
	} {
		if file.path != "" {
			*file.source = o.Sources.add(file.name, look)
		}
	}
	return k, nil
}

// Key tells who has a key or certificate, for a login name that may say which of several it is. It proves nothing:
// whoever calls has to have seen a signature. noTouch says that a security key need not have been touched. The error is
// of kind Unauthenticated, or Unavailable while a file fails that decides about the key.
func (k *Keys) Key(login string, key ssh.PublicKey, from netip.Addr) (id Identity, noTouch bool, err error) {
	now := k.o.Now()
	ring := k.current(now)
	if ring.revokedErr != nil {
		return id, false, unreadableKeys(ring.revokedErr)
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
	if err := ring.authorized.err; err != nil {
		return id, false, unreadableKeys(err)
	}
	g, err := choose(ring.authorized.users[string(key.Marshal())], login, from, now)
	if err != nil {
		return id, false, err
	}
	return Identity{Name: g.name, By: "key", Credential: ssh.FingerprintSHA256(key), Address: from.String()}, g.noTouch, nil
}

// Final reports whether nobody else may be asked about a key that Key refuses: it is revoked, or a file that fails
// decides about it.
func (k *Keys) Final(key ssh.PublicKey) bool {
	ring := k.current(k.o.Now())
	if ring.revokedErr != nil || ring.revoked.key(key) {
		return true
	}
	_, listed := ring.authorized.users[string(key.Marshal())]
	return listed && ring.authorized.err != nil
}

// unreadableKeys is the error for callers about whom a file that fails decides.
func unreadableKeys(err error) error {
	return unavailable("the server cannot read its list of keys just now; try again later", err)
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
	ring := k.load(k.ring)
	k.authorized.report(ring.authorized.err)
	k.authority.report(ring.authority.err)
	k.revoked.report(ring.revokedErr)
	failed := ring.authorized.err != nil || ring.authority.err != nil || ring.revokedErr != nil
	if k.state != "" && !failed {
		k.o.Log.Info("the files of SSH keys were read again", "lines", ring.authorized.lines, "authorities", ring.authority.lines)
	}
	k.ring, k.state = ring, state
	if young || failed {
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

// load reads all files. Of those that fail what they said before is kept, with the error.
func (k *Keys) load(before *keyring) *keyring {
	var complaints []complaint
	authorized, err := k.readAuthorized(&complaints)
	if err != nil {
		err = fmt.Errorf("the authorized keys: %w", err)
	}
	r := &keyring{authorized: authorized.after(before.authorized, err)}
	authority, err := k.readAuthority()
	if err != nil {
		err = fmt.Errorf("the certificate authorities: %w", err)
	}
	r.authority = authority.after(before.authority, err)
	r.revoked, r.revokedErr = readRevoked(k.o.Revoked)
	if r.revokedErr == nil && before.revoked != nil && r.revoked.bytes == 0 && before.revoked.bytes > 0 {
		r.revokedErr = fmt.Errorf("the revoked keys in %s: %w", k.o.Revoked, errEmptied)
	}
	if r.revokedErr != nil {
		r.revoked = before.revoked
	}
	if !slices.Equal(complaints, k.complaints) {
		for _, c := range complaints {
			k.o.Log.Warn("a part of the authorized keys is not used", "file", c.file, "line", c.line, "error", c.error)
		}
	}
	k.complaints = complaints
	return r
}

// readAuthority reads the keys that sign everybody's certificates.
func (k *Keys) readAuthority() (keyList, error) {
	l := newKeyList()
	if k.o.Authority == "" {
		return l, nil
	}
	text, err := readKeyFile(k.o.Authority)
	if err != nil {
		return l, err
	}
	l.bytes = len(text)
	for line, text := range keyLines(text) {
		key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err == nil && len(options) > 0 {
			err = fault.New(fault.Invalid, "options have no meaning here")
		}
		if err != nil {
			return l, fmt.Errorf("%s:%d: %w", k.o.Authority, line, err)
		}
		wire := string(key.Marshal())
		l.authorities[wire] = append(l.authorities[wire], grantee{})
		l.lines++
	}
	return l, nil
}

// readAuthorized reads the file, or the files of the directory, of users' keys. What cannot be used is skipped, with a
// complaint.
func (k *Keys) readAuthorized(complaints *[]complaint) (keyList, error) {
	l := newKeyList()
	if k.o.Authorized == "" {
		return l, nil
	}
	info, err := os.Stat(k.o.Authorized)
	if err != nil {
		return l, err
	}
	if !info.IsDir() {
		return l, l.readUser(k.o.Authorized, "", complaints)
	}
	entries, err := os.ReadDir(k.o.Authorized)
	if err != nil {
		return l, err
	}
	if len(entries) > maxKeyFiles {
		return l, fault.New(fault.Invalid, "%s has more than %d files", k.o.Authorized, maxKeyFiles)
	}
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(k.o.Authorized, e.Name())
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") {
			continue
		}
		err := CheckName(name)
		if err == nil {
			err = l.readUser(path, name, complaints)
		}
		if err != nil {
			*complaints = append(*complaints, complaint{file: path, error: err.Error()})
		}
	}
	return l, nil
}

// readUser adds one file; without a name each line's comment is it.
func (l *keyList) readUser(path, name string, complaints *[]complaint) error {
	text, err := readKeyFile(path)
	if err != nil {
		return err
	}
	l.bytes += len(text)
	for number, line := range keyLines(text) {
		a, err := parseAuthorized(line, name)
		if err != nil {
			*complaints = append(*complaints, complaint{path, number, err.Error()})
			l.bad++
			continue
		}
		to := l.users
		if a.authority {
			to = l.authorities
		}
		wire := string(a.key.Marshal())
		to[wire] = append(to[wire], a.grantee)
		l.lines++
	}
	return nil
}

func readKeyFile(path string) ([]byte, error) {
	f, err := openNow(path)
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
