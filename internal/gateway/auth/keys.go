package auth

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
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
	Now        func() time.Time // nil means time.Now
}

// Keys authenticates callers by SSH keys and certificates. It checks its files at most once a second while it is used.
// Safe for concurrent use.
//
// While a file is missing, unreadable, or empty although it was not before, its users cannot log in (Unavailable),
// because keys may have been removed from it. The file of revoked keys concerns all users. A file without keys needs a
// comment.
type Keys struct {
	o KeyOptions

	mu         sync.Mutex
	watcher    credfile.Watcher
	ring       *keyring
	complaints []complaint // those in the log
}

// complaint is about an ignored file of a directory, or an ignored line of a file.
type complaint struct {
	file  string
	line  int // from 1; zero means the file
	error string
}

// keyring is the content of the files. It is immutable.
type keyring struct {
	authorized, authority keyFile[keyList]
	revoked               keyFile[*revocations]
}

func (r *keyring) err() error { return errors.Join(r.authorized.err, r.authority.err, r.revoked.err) }

// keyFile is the content of a file, or of the files of a directory. The content of a failing file stays, to know which
// users it concerns, but permits no login.
type keyFile[T any] struct {
	name, path string // path is empty if the file is not configured
	source     *source
	content    T
	size       int   // bytes of text
	err        error // the reason why the file fails
}

// replace returns the file with a new content, or with the previous one and an error.
func (f keyFile[T]) replace(content T, size int, err error) keyFile[T] {
	if err == nil && size == 0 && f.size > 0 { // for example after an interrupted write, or without its mount
		err = errors.New("it has become empty: write a comment into it if no key is intended")
	}
	f.err = nil
	if err != nil {
		f.err = fmt.Errorf("%s %s: %w", f.name, f.path, err)
	} else {
		f.content, f.size = content, size
	}
	f.source.report(f.err)
	return f
}

// keyList is the keys of a keyFile.
type keyList struct {
	users       map[string][]grantee // by the key in wire format
	authorities map[string][]grantee // keys that sign certificates; a grantee without a name is for all users
	lines       int                  // valid ones
}

func newKeyList() keyList {
	return keyList{users: map[string][]grantee{}, authorities: map[string][]grantee{}}
}

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
)

// LoadKeys reads the files. It fails if a file as a whole is invalid, and logs invalid lines.
func LoadKeys(o KeyOptions) (*Keys, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	k := &Keys{o: o, watcher: credfile.Watcher{
		Paths: []string{o.Authorized, o.Authority, o.Revoked}, Interval: keyInterval,
	}}
	k.watcher.Check(o.Now())
	r := &keyring{
		authorized: keyFile[keyList]{name: "authorized keys", path: o.Authorized},
		authority:  keyFile[keyList]{name: "certificate authorities", path: o.Authority},
		revoked:    keyFile[*revocations]{name: "revoked keys", path: o.Revoked},
	}
	k.ring = k.load(r)
	if err := k.ring.err(); err != nil {
		return nil, err
	}
	k.ring.authorized.source = k.addSource(SourceAuthorizedKeys, o.Authorized)
	k.ring.authority.source = k.addSource(SourceUserCA, o.Authority)
	k.ring.revoked.source = k.addSource(SourceRevokedKeys, o.Revoked)
	return k, nil
}

// addSource adds a configured file to the identity sources.
func (k *Keys) addSource(name, path string) *source {
	if k.o.Sources == nil || path == "" {
		return nil
	}
	return k.o.Sources.add(name, func() { k.current(k.o.Now()) })
}

// Accepts reports whether the credential is an SSH key or certificate.
func (k *Keys) Accepts(c *Credential) bool { return c.Key != nil }

// Configured reports whether users can have keys.
func (k *Keys) Configured() bool { return k.o.Authorized != "" || k.o.Authority != "" }

// Close does nothing.
func (k *Keys) Close() error { return nil }

// Identify returns the owner of a key or certificate. The user name of the credential selects one of several owners.
// The error is Unauthenticated, or Unavailable while a file fails that decides about the key.
func (k *Keys) Identify(_ context.Context, c *Credential) (id Identity, err error) {
	now := k.o.Now()
	from, _ := netip.ParseAddr(c.Address)
	ring := k.current(now)
	if ring.revoked.err != nil {
		return id, unreadableKeys(ring.revoked.err)
	}
	if err := checkStrength(c.Key); err != nil {
		return id, err
	}
	if cert, ok := c.Key.(*ssh.Certificate); ok {
		return ring.certificate(c.User, cert, from, now)
	}
	if ring.revoked.content.key(c.Key) {
		return id, unknownKey("the key is revoked")
	}
	lines, listed := ring.authorized.content.users[string(c.Key.Marshal())]
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

// unreadableKeys returns the error for users of a failing file.
func unreadableKeys(err error) error {
	return unavailable("the server cannot read its SSH keys at present; try again later", err)
}

func unknownKey(format string, args ...any) error {
	return fault.New(fault.Unauthenticated, format, args...)
}

// choose returns the line that permits a login. If several users have the key, the login name selects one.
func choose(lines []grantee, login string, from netip.Addr, now time.Time) (*grantee, error) {
	reason := unknownKey("unknown key")
	var found *grantee
	several := false
	for i := range lines {
		g := &lines[i]
		switch {
		case !g.expires.IsZero() && !now.Before(g.expires):
			reason = unknownKey("the key has expired")
		case g.restricted && !g.from.match(from):
			reason = unknownKey("the key is not for this address")
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
		return nil, reason
	}
	return found, nil
}

// minRSA is the minimum length of an RSA key in bits.
const minRSA = 2048

// checkStrength fails for an RSA key, or a certificate of one, that is too short.
func checkStrength(key ssh.PublicKey) error {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	if k, ok := key.(ssh.CryptoPublicKey); ok {
		if k, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && k.N.BitLen() < minRSA {
			return unknownKey("the RSA key has %d bits: at least %d are required", k.N.BitLen(), minRSA)
		}
	}
	return nil
}

// current returns the keyring, and reads the files again if necessary.
func (k *Keys) current(now time.Time) *keyring {
	k.mu.Lock()
	defer k.mu.Unlock()
	read, changed := k.watcher.Check(now)
	if !read {
		return k.ring
	}
	k.ring = k.load(k.ring)
	switch {
	case k.ring.err() != nil:
		k.watcher.Retry()
	case changed:
		k.o.Log.Info("SSH keys reloaded", "lines", k.ring.authorized.content.lines,
			"authorities", k.ring.authority.content.lines)
	}
	return k.ring
}

// load reads all files.
func (k *Keys) load(before *keyring) *keyring {
	var complaints []complaint
	authorized, size, err := readAuthorized(k.o.Authorized, &complaints)
	badLine := slices.ContainsFunc(complaints, func(c complaint) bool { return c.line > 0 })
	if err == nil && authorized.lines == 0 && badLine && before.authorized.content.lines > 0 {
		err = errors.New("it has no valid line any more")
	}
	r := &keyring{authorized: before.authorized.replace(authorized, size, err)}
	r.authority = before.authority.replace(readAuthority(k.o.Authority))
	r.revoked = before.revoked.replace(readRevoked(k.o.Revoked))
	if !slices.Equal(complaints, k.complaints) {
		for _, c := range complaints {
			k.o.Log.Warn("invalid authorized keys ignored", "file", c.file, "line", c.line, "error", c.error)
		}
	}
	k.complaints = complaints
	return r
}

// readAuthority reads the keys that sign certificates of all users.
func readAuthority(path string) (keyList, int, error) {
	l := newKeyList()
	text, err := readKeyFile(path)
	for line, text := range keyLines(text) {
		key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err == nil && len(options) > 0 {
			err = fault.New(fault.Invalid, "options are not supported here")
		}
		if err != nil {
			return l, 0, fmt.Errorf("line %d: %w", line, err)
		}
		wire := string(key.Marshal())
		l.authorities[wire] = append(l.authorities[wire], grantee{})
		l.lines++
	}
	return l, len(text), err
}

// readAuthorized reads the keys of users from a file or the files of a directory. It skips invalid lines and files,
// with a complaint.
func readAuthorized(path string, complaints *[]complaint) (l keyList, size int, err error) {
	l = newKeyList()
	if path == "" {
		return l, 0, nil
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, unix.ENOTDIR) {
		size, err = l.readUser(path, "", complaints)
		return l, size, err
	}
	if err == nil && len(entries) > maxKeyFiles {
		err = fault.New(fault.Invalid, "it has more than %d files", maxKeyFiles)
	}
	if err != nil {
		return l, 0, err
	}
	for _, e := range entries {
		name, file := e.Name(), filepath.Join(path, e.Name())
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") {
			continue
		}
		n, err := 0, CheckName(name)
		if err == nil {
			n, err = l.readUser(file, name, complaints)
		}
		if err != nil {
			*complaints = append(*complaints, complaint{file: file, error: err.Error()})
		}
		size += n
	}
	return l, size, nil
}

// readUser adds the keys of one file. If name is empty, the comment of each line is the name.
func (l *keyList) readUser(path, name string, complaints *[]complaint) (size int, err error) {
	text, err := readKeyFile(path)
	for number, line := range keyLines(text) {
		a, err := parseAuthorized(line, name)
		if err != nil {
			*complaints = append(*complaints, complaint{path, number, err.Error()})
			continue
		}
		keys := l.users
		if a.authority {
			keys = l.authorities
		}
		wire := string(a.key.Marshal())
		keys[wire] = append(keys[wire], a.grantee)
		l.lines++
	}
	return len(text), err
}

// readKeyFile returns the text of a file, or an empty one if the file is not configured or the read fails.
func readKeyFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, _, err := readFile(path, maxKeyFile)
	if err != nil {
		return nil, err
	}
	return text, nil
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
