package auth

import (
	"context"
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

// KeyOptions names the files of Keys.
type KeyOptions struct {
	// Authorized is a file in the format of authorized_keys (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"), where the comment of
	// a line is the name of its user. Or it is a directory with such a file for each user, named after the user.
	Authorized string
	Authority  string   // file with the public keys of the authorities that sign certificates of users
	Revoked    string   // file with revoked keys; see revocations
	Sources    *Sources // gets the files as identity sources; nil means none
	Log        *slog.Logger
	Now        func() time.Time // nil: time.Now
}

// Keys authenticates callers by SSH keys and certificates. It checks its files at most once a second while it is used.
// Safe for concurrent use.
//
// While a file is missing, unreadable, or empty although it was not before, nobody about whom it decides can log in
// (Unavailable), because keys may have been removed from it. Without the file of revoked keys that is everybody. A file
// without keys needs a comment.
type Keys struct {
	o                              KeyOptions
	authorized, authority, revoked *source // nil if not configured

	mu         sync.Mutex
	checked    time.Time
	state      string // of the files when they were read; empty to read them again
	ring       *keyring
	complaints []complaint // those in the log
}

// complaint is about an ignored file of a directory, or an ignored line of a file.
type complaint struct {
	file  string
	line  int // from 1; zero means the file
	error string
}

// keyring is the content of the files. It is immutable. The content of a failing file stays, to know about whom it
// decides, but permits no login.
type keyring struct {
	authorized keyList
	authority  keyList
	revoked    *revocations
	revokedErr error
}

// keyList is the content of a file, or of a directory of files.
type keyList struct {
	users       map[string][]grantee // by the key in wire format
	authorities map[string][]grantee // keys that sign certificates; a grantee without a name is for all users
	bytes       int                  // of text
	lines, bad  int                  // valid and invalid ones
	err         error                // the reason why the file fails
}

func newKeyList() keyList {
	return keyList{users: map[string][]grantee{}, authorities: map[string][]grantee{}}
}

// after returns the list if it may replace an earlier one, and otherwise the earlier one with an error.
func (l keyList) after(before keyList, err error) keyList {
	switch {
	case err != nil:
	case l.bytes == 0 && before.bytes > 0:
		err = errEmptied
	case l.lines == 0 && l.bad > 0 && before.lines > 0:
		err = errors.New("no line is valid any more")
	default:
		return l
	}
	before.err = err
	return before
}

// errEmptied is the error for a file that has become empty, for example after an interrupted write or without its
// mount.
var errEmptied = errors.New("it has become empty: write a comment into it if no key is intended")

// grantee is the user of a line.
type grantee struct {
	name       string
	restricted bool // to the addresses in from
	from       addressPattern
	expires    time.Time // zero means never
	principals []string  // a certificate needs one of them; empty means the name
	noTouch    bool
}

const (
	maxKeyFile  = 16 << 20 // bytes of a file
	maxKeyFiles = 100_000  // files in a directory
	keyInterval = time.Second
	// keyClock is the time within which two changes of a file may look like one.
	keyClock = 2 * time.Second
)

// LoadKeys reads the files. It fails if a file as a whole is invalid, and logs invalid lines.
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

// Accepts reports whether the credential is an SSH key or certificate.
func (k *Keys) Accepts(c *Credential) bool { return c.Key != nil }

// Configured reports that users can have keys.
func (k *Keys) Configured() bool { return k.o.Authorized != "" || k.o.Authority != "" }

// Close does nothing.
func (k *Keys) Close() error { return nil }

// Identify returns the owner of a key or certificate. The user name of the credential selects one of several owners.
// The error is Unauthenticated, or Unavailable while a file fails that decides about the key.
func (k *Keys) Identify(_ context.Context, c *Credential) (id Identity, err error) {
	now := k.o.Now()
	from, _ := netip.ParseAddr(c.Address)
	ring := k.current(now)
	if ring.revokedErr != nil {
		return id, unreadableKeys(ring.revokedErr)
	}
	if err := checkStrength(c.Key); err != nil {
		return id, err
	}
	if cert, ok := c.Key.(*ssh.Certificate); ok {
		return ring.certificate(c.User, cert, from, now)
	}
	if ring.revoked.key(c.Key) {
		return id, unknownKey("the key is revoked")
	}
	lines, listed := ring.authorized.users[string(c.Key.Marshal())]
	if err := ring.authorized.err; err != nil {
		if err = unreadableKeys(err); !listed {
			err = notKnown(err)
		}
		return id, err
	}
	g, err := choose(lines, c.User, from, now)
	if err != nil {
		return id, notKnown(err)
	}
	return Identity{Name: g.name, By: ByKey, Credential: ssh.FingerprintSHA256(c.Key), noTouch: g.noTouch}, nil
}

// unreadableKeys returns the error for callers about whom a failing file decides.
func unreadableKeys(err error) error {
	return unavailable("the server cannot read its SSH keys at present; try again later", err)
}

func unknownKey(format string, args ...any) error {
	return fault.New(fault.Unauthenticated, format, args...)
}

// choose returns the line that permits a login. If several users have the key, the login name selects one.
func choose(lines []grantee, login string, from netip.Addr, now time.Time) (*grantee, error) {
	why := unknownKey("unknown key")
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
		return nil, unknownKey("several users have this key: use one of their names to log in")
	case found == nil:
		return nil, why
	}
	return found, nil
}

// minRSA is the minimum length of an RSA key in bits.
const minRSA = 2048

func checkStrength(key ssh.PublicKey) error {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	if n := rsaBits(key); n > 0 && n < minRSA {
		return unknownKey("the RSA key has %[2]d bits: at least %[1]d are required", minRSA, n)
	}
	return nil
}

// current returns the keyring, and reads the files again if they changed.
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
		k.o.Log.Info("SSH keys reloaded", "lines", ring.authorized.lines, "authorities", ring.authority.lines)
	}
	k.ring, k.state = ring, state
	if young || failed {
		k.state = ""
	}
	return ring
}

// look returns a text that changes with the files. young reports a change so recent that another one may leave the text
// unchanged.
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

// load reads all files. For a file that fails it keeps the previous content, with the error.
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
			k.o.Log.Warn("invalid authorized keys ignored", "file", c.file, "line", c.line, "error", c.error)
		}
	}
	k.complaints = complaints
	return r
}

// readAuthority reads the keys that sign certificates of all users.
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
			err = fault.New(fault.Invalid, "options are not supported here")
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

// readAuthorized reads the keys of users from the file or the files of the directory. It skips invalid lines and files,
// with a complaint.
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
		return l, fault.New(fault.Invalid, "%s: more than %d files", k.o.Authorized, maxKeyFiles)
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

// readUser adds one file. If name is empty, the comment of each line is the name.
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
		return nil, fault.New(fault.Invalid, "%s: not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fault.New(fault.Invalid, "%s: longer than %d bytes", path, maxKeyFile)
	}
	return text, err
}

// keyLines yields the numbers, from 1, and the texts of lines that are not empty or comments.
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
