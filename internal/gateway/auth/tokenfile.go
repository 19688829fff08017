package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TokenFile is the file with the hashes of tokens: JSON, mode 0600. Commands replace it under a lock on its directory,
// and servers read it again after each change.
type TokenFile struct{ path string }

// NewTokenFile returns the token file at a path. It need not exist.
func NewTokenFile(path string) TokenFile { return TokenFile{path} }

// Check returns an error if a server cannot start with the file. Such a file is unreadable, damaged or lost
// (CheckLost), or it is required and does not exist.
func (f TokenFile) Check(required bool) error {
	table, exists, err := f.read()
	if err != nil {
		return err
	}
	if _, err := (&Tokens{file: f}).open(table, true); err != nil {
		return fmt.Errorf("token file %s: %w", f.path, err)
	}
	if required && !exists {
		return fmt.Errorf("token file %s: it does not exist: create the first token with \"packhorse token create NAME\"",
			f.path)
	}
	return f.CheckLost()
}

// CheckLost returns an error if the file is missing although its tokens were used earlier.
func (f TokenFile) CheckLost() error {
	if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(f.usedPath()); err == nil {
		return fmt.Errorf("token file %s: it is missing and existed earlier: restore it, or remove %s to start without "+
			"tokens", f.path, f.usedPath())
	}
	return nil
}

// Token describes a token. Only Access.Mint returns the token itself.
type Token struct {
	ID           string    `json:"id"`   // NAME/NUMBER, never reused
	Name         string    `json:"name"` // of the identity that it proves
	Hash         string    `json:"sha256"`
	Scope        string    `json:"scope"`                  // an Operation
	Repositories []string  `json:"repositories,omitempty"` // patterns; empty means all
	Refs         []string  `json:"refs,omitempty"`         // patterns of the only refs that may be changed; empty means all
	Created      time.Time `json:"created"`
	Expires      time.Time `json:"expires,omitzero"` // zero means never
	Used         time.Time `json:"-"`                // the latest recorded use; zero means none
}

// tokenTable is the content of the file.
type tokenTable struct {
	Version int     `json:"version"`
	Last    int     `json:"last"` // the number of the latest token
	Tokens  []Token `json:"tokens"`
	Rules   RuleSet `json:"rules,omitzero"`

	Forgotten int    `json:"forgotten,omitempty"` // the number of users that were forgotten
	Forget    string `json:"forget,omitempty"`    // the latest one
}

// needs returns the version of the content. Older programs must not read what they would ignore.
func (t *tokenTable) needs() int {
	if t.Rules.Version > 0 || slices.ContainsFunc(t.Tokens, func(one Token) bool { return len(one.Refs) > 0 }) {
		return 2
	}
	return 1
}

// Limits of a token file.
const (
	maxTokenFile = 32 << 20 // bytes
	maxTokens    = 100_000
)

// TokenRequest describes a token to be created.
type TokenRequest struct {
	Name         string
	Scope        Operation
	Repositories []string  // patterns; empty means all
	Refs         []string  // patterns of the only refs that may be changed; empty means all
	Expires      time.Time // zero means never
	Most         int       // maximum number of tokens with the name; zero means no limit
}

// check returns an error for an invalid request.
func (r *TokenRequest) check(now time.Time) error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if _, err := ParsePatterns(r.Repositories); err != nil {
		return err
	}
	if _, err := node.ParseRefPatterns(r.Refs); err != nil {
		return err
	}
	switch {
	case !r.Expires.IsZero() && !r.Expires.After(now):
		return fault.New(fault.Invalid, "the time of expiry %s has passed", r.Expires.Format(time.RFC3339))
	case len(r.Refs) > 0 && r.Scope == Admin:
		return fault.New(fault.Invalid, "a token for some refs cannot have the scope admin, which includes more than refs")
	case max(len(r.Repositories), len(r.Refs)) > maxInRule:
		return fault.New(fault.Invalid, "a token has at most %d patterns", maxInRule)
	}
	return nil
}

// list is Access.List.
func (f TokenFile) list() ([]Token, error) {
	if err := f.CheckLost(); err != nil {
		return nil, err
	}
	t, _, err := f.read()
	if err != nil {
		return nil, err
	}
	used := readUsed(f.usedPath())
	for i := range t.Tokens {
		if at, ok := used[t.Tokens[i].ID]; ok {
			t.Tokens[i].Used = time.Unix(at, 0).UTC()
		}
	}
	slices.SortStableFunc(t.Tokens, func(a, b Token) int { return cmp.Compare(a.Name, b.Name) })
	return t.Tokens, nil
}

// readFile reads a file of at most limit bytes, and never waits for the writer of a named pipe.
func readFile(path string, limit int64) (text []byte, info fs.FileInfo, err error) {
	file, err := disk.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	text, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fault.New(fault.Invalid, "%s: longer than %d bytes", path, limit)
	}
	return text, info, err
}

// read returns the content of the file. A missing file has no tokens.
func (f TokenFile) read() (t tokenTable, exists bool, err error) {
	text, info, err := readFile(f.path, maxTokenFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return tokenTable{Version: 1}, false, nil
	case err != nil:
	case info.Mode().Perm()&0o022 != 0:
		err = fmt.Errorf("other users can write to it (mode %04o): check its content, and run chmod 600 on it",
			info.Mode().Perm())
	default:
		if err = json.Unmarshal(text, &t); err == nil && t.Version != 1 && t.Version != 2 {
			err = fmt.Errorf("it has version %d, and this program knows 1 and 2: use a newer version of packhorse", t.Version)
		}
	}
	if err != nil {
		return t, true, fmt.Errorf("token file %s: %w", f.path, err)
	}
	return t, true, nil
}

// change implements accessTable. The new content is on disk when change returns, so that a revoked token stays revoked.
// A lost file is an error. If it were created again, servers would refuse all earlier tokens, and
// git would erase them from its credential store.
func (f TokenFile) change(_ context.Context, do func(*tokenTable) (*accessChange, error)) error {
	lock, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("lock the tokens: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the tokens: %w", err)
	}
	if err := f.CheckLost(); err != nil {
		return err
	}
	t, _, err := f.read()
	if err != nil {
		return err
	}
	c, err := do(&t)
	if err != nil || c == nil {
		return err
	}
	text, err := t.encodeAfter(c, maxTokenFile)
	if err != nil {
		return err
	}
	return f.write(f.path, text)
}

// write replaces the token file, or the file at usedPath. A command of root gives the new file to the owner of its
// directory, because the server has to read it.
func (f TokenFile) write(path string, text []byte) error {
	err := disk.ReplaceFile(path, text, func(file *os.File) error {
		if os.Geteuid() != 0 {
			return nil
		}
		var owner unix.Stat_t
		if err := unix.Stat(filepath.Dir(path), &owner); err != nil {
			return err
		}
		return file.Chown(int(owner.Uid), int(owner.Gid))
	})
	if err != nil {
		return fmt.Errorf("write the tokens: %w", err)
	}
	return nil
}

// usedPath returns the path of the file in which a server records the latest use of each token, as lines of "ID
// UNIXTIME".
func (f TokenFile) usedPath() string { return f.path + ".used" }

func readUsed(path string) map[string]int64 {
	used := map[string]int64{}
	text, _, err := readFile(path, maxTokenFile)
	if err != nil {
		return used
	}
	for line := range strings.Lines(string(text)) {
		id, at, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if unix, err := strconv.ParseInt(at, 10, 64); err == nil {
			used[id] = unix
		}
	}
	return used
}
