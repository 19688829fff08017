package gitload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Client is a git client that reads and drops packs. It speaks version 2 (gitprotocol-v2(5)). Safe for concurrent use.
type Client struct {
	url, token string
	http       *http.Client
}

// NewClient returns a client with connections of its own. The URL is that of a server's repositories. An empty token
// means none.
func NewClient(url, token string) *Client {
	return &Client{url: url, token: token, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get sends a GET request. The result is that of Post.
func (c *Client) Get(ctx context.Context, path string) (io.ReadCloser, time.Duration, error) {
	return c.do(ctx, http.MethodGet, path, "", nil)
}

// Post sends a request to a service of a repository, as git-upload-pack. It returns the body and the time until its
// first byte. A status other than 200 is a *loadgen.HTTPError in the chain of the error.
func (c *Client) Post(ctx context.Context, repo, service string, body []byte) (io.ReadCloser, time.Duration, error) {
	return c.do(ctx, http.MethodPost, "/"+repo+"/"+service, "application/x-"+service+"-request", body)
}

func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte) (io.ReadCloser, time.Duration,
	error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Git-Protocol", "version=2")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	begun := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, err
	}
	first := time.Since(begun)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		response.Body.Close()
		return nil, 0, fmt.Errorf("%s %s: %w", method, path, &loadgen.HTTPError{Status: response.StatusCode,
			Text: loadgen.Clean(text)})
	}
	return response.Body, first, nil
}

// Info asks for the capabilities, as each git client does first.
func (c *Client) Info(ctx context.Context, repo string) error {
	body, _, err := c.Get(ctx, "/"+repo+"/info/refs?service=git-upload-pack")
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// LsRefs asks for a branch, and returns its commit and the time to the first byte.
func (c *Client) LsRefs(ctx context.Context, repo, branch string) (id string, first time.Duration, err error) {
	body, first, err := c.Post(ctx, repo, "git-upload-pack", LsRefs(git.SHA1, "refs/heads/"+branch))
	if err != nil {
		return "", 0, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return "", 0, err
	}
	refs, err := ParseRefs(text)
	for _, r := range refs {
		if r.Name == "refs/heads/"+branch {
			return r.Id.String(), first, nil
		}
	}
	return "", 0, errors.Join(err, fmt.Errorf("%s has no branch %s", repo, branch))
}

// Fetch asks for a commit, with a depth if it is not zero, and reads the pack to its end. It returns the size of the
// pack, or of the part that arrived before an error.
func (c *Client) Fetch(ctx context.Context, repo, want string, depth int) (size int64, err error) {
	r := FetchRequest{Depth: depth, Wants: []string{want}}
	body, _, err := c.Post(ctx, repo, "git-upload-pack", r.Body())
	if err != nil {
		return 0, err
	}
	defer body.Close()
	a := &answerReader{}
	err = a.read(body)
	return a.walker.pack, err
}

// Clone does what a job does: capabilities, the branch, and its commit.
func (c *Client) Clone(ctx context.Context, repo string, depth int) error {
	if err := c.Info(ctx, repo); err != nil {
		return err
	}
	id, _, err := c.LsRefs(ctx, repo, "main")
	if err != nil {
		return err
	}
	_, err = c.Fetch(ctx, repo, id, depth)
	return err
}
