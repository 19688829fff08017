package auth

import (
	"cmp"
	"encoding/hex"
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
)

// TokenFile is the file with the hashes of tokens: JSON, mode 0600. Commands replace it whole, under a lock
// on its directory; servers follow it.
type TokenFile struct{ path string }

// NewTokenFile names the file; it need not exist.
func NewTokenFile(path string) TokenFile { return TokenFile{path} }

// Check reports what is wrong with the file at a server's start: it cannot be read, is damaged, or does not exist where
// it has to, or did once.
func (f TokenFile) Check(required bool) error {
	table, info, err := f.read()
	if err != nil {
		return err
	}
	if _, err := (&Tokens{file: f}).open(table, true); err != nil {
		return fmt.Errorf("read the tokens in %s: %w", f.path, err)
	}
	if info != nil {
		return nil
	}
	if required {
		return fmt.Errorf("the file of tokens %s does not exist; make the first token with \"packhorse token create NAME\"",
			f.path)
	}
	return f.CheckLost()
}

// CheckLost reports that there is no file although there was one: its tokens were used.
func (f TokenFile) CheckLost() error {
	if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(f.usedPath()); err == nil {
		return fmt.Errorf("the file of tokens %s is gone, and there was one: put it back, or remove %s as well to begin "+
			"without tokens", f.path, f.usedPath())
	}
	return nil
}

// Token is what is known of a token. The token itself is told once, by Create.
type Token struct {
	ID           string    `json:"id"`   // NAME/NUMBER, never used again
	Name         string    `json:"name"` // of the identity that it proves
	Hash         string    `json:"sha256"`
	Scope        string    `json:"scope"`                  // an Operation
	Repositories []string  `json:"repositories,omitempty"` // patterns; empty: all
	Created      time.Time `json:"created"`
	Expires      time.Time `json:"expires,omitzero"` // zero: never
	Used         time.Time `json:"-"`                // about when it was last used; see usedFile
}

// tokenTable is the file's content.
type tokenTable struct {
	Version int     `json:"version"`
	Last    int     `json:"last"` // the number of the latest token
	Tokens  []Token `json:"tokens"`
}

// Bounds of a token file.
const (
	maxTokenFile = 32 << 20 // bytes
	maxTokens    = 100_000
)

// TokenRequest says what a new token is for.
type TokenRequest struct {
	Name         string
	Scope        Operation
	Repositories []string
	Expires      time.Time // zero: never
}

// Create makes a token and keeps its hash. When it returns the hash is on disk. Names need not be unique: that is how
// one token takes the place of another. Errors: Invalid, Exhausted for too many.
func (f TokenFile) Create(r TokenRequest, now time.Time) (token string, made Token, err error) {
	if err := CheckName(r.Name); err != nil {
		return "", made, err
	}
	if _, err := ParsePatterns(r.Repositories); err != nil {
		return "", made, err
	}
	if !r.Expires.IsZero() && !r.Expires.After(now) {
		return "", made, fault.New(fault.Invalid, "such a token would have expired already")
	}
	err = f.change(func(t *tokenTable) error {
		if len(t.Tokens) >= maxTokens {
			return fault.New(fault.Exhausted, "there are %d tokens, which is the most; revoke some", maxTokens)
		}
		t.Last++
		token = newToken()
		hash := hashToken(token)
		made = Token{
			ID: r.Name + "/" + strconv.Itoa(t.Last), Name: r.Name, Hash: hex.EncodeToString(hash[:]), Scope: r.Scope.String(),
			Repositories: r.Repositories, Created: now.UTC().Truncate(time.Second),
			Expires: r.Expires.UTC().Truncate(time.Second),
		}
		t.Tokens = append(t.Tokens, made)
		return nil
	})
	return token, made, err
}

// Revoke removes the token with an ID, or all of a name. It fails with NotFound if there is none.
func (f TokenFile) Revoke(which string) (gone []Token, err error) {
	err = f.change(func(t *tokenTable) error {
		t.Tokens = slices.DeleteFunc(t.Tokens, func(one Token) bool {
			match := one.ID == which || one.Name == which
			if match {
				gone = append(gone, one)
			}
			return match
		})
		if len(gone) == 0 {
			return fault.New(fault.NotFound, "no token %.80q; \"packhorse token list\" shows those that there are", which)
		}
		return nil
	})
	return gone, err
}

// List gives all tokens by name, with their last use as far as the server has written it down.
// It fails if the file is lost.
func (f TokenFile) List() ([]Token, error) {
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

// openNow is os.Open that does not wait: a named pipe in the place of a file would hold up all callers, also after it
// is gone.
func openNow(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) }

// read gives the file's content, and what the file was; of one that does not exist, nothing.
func (f TokenFile) read() (t tokenTable, info fs.FileInfo, err error) {
	file, err := openNow(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return tokenTable{Version: 1}, nil, nil
	}
	if err != nil {
		return t, nil, fmt.Errorf("read the tokens: %w", err)
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return t, nil, fmt.Errorf("read the tokens: %w", err)
	}
	if !info.Mode().IsRegular() {
		return t, nil, fmt.Errorf("read the tokens: %s is not a regular file; put the file of tokens back", f.path)
	}
	if mode := info.Mode(); mode.Perm()&0o022 != 0 {
		return t, nil, fmt.Errorf("read the tokens: others may write %s (mode %04o); run chmod 600 on it, and look at "+
			"what is in it", f.path, mode.Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err == nil && len(text) > maxTokenFile {
		err = errors.New("the file is too long")
	}
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err == nil && t.Version != 1 {
		err = fmt.Errorf("version %d is not known here", t.Version)
	}
	if err != nil {
		return t, nil, fmt.Errorf("read the tokens in %s: %w", f.path, err)
	}
	return t, info, nil
}

// change replaces the file by one whose content do has changed. Before it returns the new one is on disk, so that a
// token which was revoked stays revoked. A file that is lost is not begun anew: the server would refuse all tokens but
// the new one for good, and git forget them.
func (f TokenFile) change(do func(*tokenTable) error) error {
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
	if err := do(&t); err != nil {
		return err
	}
	text, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return err
	}
	if err := replaceFile(f.path, append(text, '\n'), true); err != nil {
		return fmt.Errorf("write the tokens: %w", err)
	}
	return nil
}

// replaceFile puts a file in the place of another at once. It belongs to the directory's owner, whoever runs the
// command: the server has to read it. Durable says that it is on disk afterwards.
func replaceFile(path string, text []byte, durable bool) (err error) {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	if _, err = file.Write(text); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		var owner unix.Stat_t
		if err = unix.Stat(dir, &owner); err == nil {
			err = file.Chown(int(owner.Uid), int(owner.Gid))
		}
		if err != nil {
			return err
		}
	}
	if durable {
		if err = file.Sync(); err != nil {
			return err
		}
	}
	if err = file.Close(); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), path); err != nil || !durable {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// usedPath is where the server writes down when tokens were last used: "ID UNIXTIME" in each line. Nothing is lost with
// it but that.
func (f TokenFile) usedPath() string { return f.path + ".used" }

func readUsed(path string) map[string]int64 {
	file, err := openNow(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return nil
	}
	used := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		id, at, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if unix, err := strconv.ParseInt(at, 10, 64); err == nil {
			used[id] = unix
		}
	}
	return used
}
