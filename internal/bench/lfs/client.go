package lfs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// patience is the timeout of one request.
const patience = 10 * time.Minute

// batch asks for downloads of objects (docs/api/batch.md of Git LFS). It returns a URL for each object, and the time to
// the last byte of the response. An object without a URL is an error.
func batch(ctx context.Context, repository string, objects []object) (urls []string, took time.Duration, err error) {
	type item struct {
		OID     string `json:"oid"`
		Size    int64  `json:"size"`
		Actions struct {
			Download struct {
				Href string `json:"href"`
			} `json:"download"`
		} `json:"actions,omitzero"`
	}
	var message struct {
		Operation string   `json:"operation,omitempty"`
		Transfers []string `json:"transfers,omitempty"`
		HashAlgo  string   `json:"hash_algo,omitempty"`
		Objects   []item   `json:"objects"`
	}
	message.Operation, message.Transfers, message.HashAlgo = "download", []string{"basic"}, "sha256"
	for _, o := range objects {
		message.Objects = append(message.Objects, item{OID: o.oid, Size: o.size})
	}
	body, err := json.Marshal(message)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, repository+"/info/lfs/objects/batch",
		bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Accept", "application/vnd.git-lfs+json")
	request.Header.Set("Content-Type", "application/vnd.git-lfs+json")
	transport := &http.Transport{DisableKeepAlives: true}
	begun := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, 0, err
	}
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	took = time.Since(begun)
	if err == nil && response.StatusCode != http.StatusOK {
		err = &loadgen.HTTPError{Status: response.StatusCode, Text: loadgen.Clean(text[:min(len(text), 300)])}
	}
	message.Objects = nil
	if err == nil {
		err = json.Unmarshal(text, &message)
	}
	if err == nil && len(message.Objects) != len(objects) {
		err = fmt.Errorf("the response has %d objects, want %d", len(message.Objects), len(objects))
	}
	for _, o := range message.Objects {
		if err == nil && o.Actions.Download.Href == "" {
			err = fmt.Errorf("object %s has no download: %.300s", o.OID, loadgen.Clean(text))
		}
		urls = append(urls, o.Actions.Download.Href)
	}
	if err != nil {
		err = fmt.Errorf("batch request to %s: %w", repository, err)
	}
	return urls, took, err
}

// open requests a URL and reads the head of the response, whose body has to have this size. The caller closes the
// connection.
func open(ctx context.Context, url string, size int64) (*loadgen.Conn, *loadgen.Body, error) {
	t, err := loadgen.ParseTarget(url, false)
	if err != nil {
		return nil, nil, err
	}
	c, err := t.DialConn(ctx, new(atomic.Int64), patience)
	if err != nil {
		return nil, nil, err
	}
	b, err := c.Exchange(t.Encode(http.MethodGet, t.Path, "Accept: */*\r\n", nil))
	if err == nil && (b.Status != http.StatusOK || b.Length != size) {
		err = fmt.Errorf("%s: status %d with %d bytes, want 200 with %d", url, b.Status, b.Length, size)
	}
	if err != nil {
		c.Close()
	}
	return c, b, err
}

// download reads and drops a resource of this size.
func download(ctx context.Context, url string, size int64) error {
	c, b, err := open(ctx, url, size)
	if err != nil {
		return err
	}
	defer c.Close()
	return b.Drain()
}
