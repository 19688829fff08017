package gitload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// FetchRequest is a fetch of protocol version 2 as git sends it (gitprotocol-v2(5), "fetch").
type FetchRequest struct {
	Format git.ObjectFormat
	Depth  int    // 0: the whole history
	Filter string // "": none
	Tags   bool   // include-tag
	Wants  []string
	Haves  []string // the first round of a negotiation, after which the server is ready
}

// Body encodes the request.
func (r *FetchRequest) Body() []byte {
	b := pktline.AppendLine(nil, "command=fetch")
	b = pktline.Append(b, "agent="+loadgen.UserAgent)
	b = pktline.Append(b, "object-format="+r.Format.String())
	b = pktline.AppendDelim(b)
	b = pktline.Append(b, "thin-pack")
	b = pktline.Append(b, "no-progress")
	if r.Tags {
		b = pktline.Append(b, "include-tag")
	}
	b = pktline.Append(b, "ofs-delta")
	if r.Depth > 0 {
		b = pktline.Append(b, fmt.Sprintf("deepen %d", r.Depth))
	}
	if r.Filter != "" {
		b = pktline.Append(b, "filter "+r.Filter)
	}
	for _, id := range r.Wants {
		b = pktline.AppendLine(b, "want "+id)
	}
	for _, id := range r.Haves {
		b = pktline.AppendLine(b, "have "+id)
	}
	if len(r.Haves) == 0 {
		b = pktline.AppendLine(b, "done")
	}
	return pktline.AppendFlush(b)
}

// Clone returns the request of a clone of all branches and tags, or with a depth of the default branch.
func (l *refList) Clone(depth int) (*FetchRequest, error) {
	r := &FetchRequest{Format: l.format, Depth: depth, Tags: true}
	seen := map[git.ObjectID]bool{}
	for _, ref := range l.Refs {
		isWanted := strings.HasPrefix(ref.Name, "refs/heads/") || strings.HasPrefix(ref.Name, "refs/tags/")
		if depth > 0 {
			isWanted = ref.Name == "HEAD"
		}
		if isWanted && !ref.Id.IsZero() && !seen[ref.Id] {
			seen[ref.Id] = true
			r.Wants = append(r.Wants, ref.Id.String())
		}
	}
	if len(r.Wants) == 0 {
		return nil, errors.New("the server shows nothing to clone: the repository may be empty")
	}
	return r, nil
}

// Check lets git check packs in a repository with the state of a client.
type Check struct {
	Request *FetchRequest
	// Prepare puts an empty repository into the client's state. Nil: the client has nothing.
	Prepare func(ctx context.Context, repo string) error
	// Seen has the hashes of the packs that git has checked. Git checks each distinct pack once.
	Seen map[[sha256.Size]byte]bool
}

// Fetch sends the request, and lets git check the pack. It returns the layout of the response.
func (c *Check) Fetch(ctx context.Context, t *loadgen.Target, timeout time.Duration) (*Reference, error) {
	dir, err := os.MkdirTemp("", "packhorse-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	pack, err := os.Create(filepath.Join(dir, "pack"))
	if err != nil {
		return nil, err
	}
	defer pack.Close()
	hash := sha256.New()
	var shallow []string
	var failed error
	w := Walker{Section: func(line []byte) error {
		if id, ok := strings.CutPrefix(string(line), "shallow "); ok {
			shallow = append(shallow, id)
		}
		return nil
	}, Data: func(p []byte) {
		hash.Write(p)
		if _, err := pack.Write(p); err != nil {
			failed = err
		}
	}}
	err = t.Ask(ctx, t.Post("git-upload-pack", "", c.Request.Body()), timeout, func(b *loadgen.Body) error {
		return CheckFetch(b, nil, &w)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if !w.HasPack {
		return nil, errors.New("the response has no pack: the server has no newer commits, or negotiates further")
	}
	sum := [sha256.Size]byte(hash.Sum(nil))
	if c.Seen[sum] {
		return w.reference(), nil
	}
	if c.Seen != nil {
		c.Seen[sum] = true
	}
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := c.verify(ctx, filepath.Join(dir, "client.git"), pack, shallow); err != nil {
		return nil, fmt.Errorf("git does not accept the pack: %w", err)
	}
	return w.reference(), nil
}

func (c *Check) verify(ctx context.Context, repo string, pack io.Reader, shallow []string) error {
	_, err := RunGit(ctx, filepath.Dir(repo), nil, "init", "-q", "--bare",
		"--object-format="+c.Request.Format.String(), repo)
	if err == nil && c.Prepare != nil {
		err = c.Prepare(ctx, repo)
	}
	if err != nil {
		return err
	}
	return VerifyPack(ctx, repo, pack, c.Request.Filter, c.Request.Wants, shallow)
}

// VerifyPack lets git index a pack in a repository with the state of a client, and check that the repository has all
// wanted objects then. shallow is the boundary of the client's history after the fetch.
func VerifyPack(ctx context.Context, repo string, pack io.Reader, filter string, wants, shallow []string) error {
	if len(shallow) > 0 {
		text := strings.Join(shallow, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(repo, "shallow"), []byte(text), 0o666); err != nil {
			return err
		}
	} else {
		os.Remove(filepath.Join(repo, "shallow"))
	}
	index := []string{"index-pack", "--stdin", "--fix-thin"}
	walk := []string{"rev-list", "--objects", "--quiet", "--stdin"}
	if filter != "" {
		walk = append(walk, "--filter="+filter)
	} else { // otherwise it would look for the filtered objects
		index = append(index, "--strict")
	}
	if _, err := RunGit(ctx, repo, pack, index...); err != nil {
		return err
	}
	if len(wants) == 0 {
		return nil
	}
	if _, err := RunGit(ctx, repo, strings.NewReader(strings.Join(wants, "\n")+"\n"), walk...); err != nil {
		return fmt.Errorf("the client's repository is incomplete: %w", err)
	}
	return nil
}

// GitAccess is the environment in which git uses a target's credentials and TLS settings.
func GitAccess(t *loadgen.Target) []string {
	env := []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0="}
	if t.Auth != "" {
		env[2] += "Authorization: " + t.Auth
	}
	if t.TLS != nil && t.TLS.InsecureSkipVerify {
		env = append(env, "GIT_SSL_NO_VERIFY=1")
	}
	return env
}

// gitEnv is an environment that isolates git from the user's configuration, proxies and repositories.
func gitEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "GIT_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Packhorse Bench", "GIT_AUTHOR_EMAIL=bench@localhost", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=Packhorse Bench", "GIT_COMMITTER_EMAIL=bench@localhost", "GIT_COMMITTER_DATE=1700000000 +0000")
}
