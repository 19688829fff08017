package bucket_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

func TestVersitygw(t *testing.T) {
	t.Parallel()
	b := buckettest.Versitygw(t).Bucket("a/prefix")
	buckettest.Suite(t, b)
	testProbe(t, b)
}

func testProbe(t *testing.T, b bucket.Bucket) {
	t.Run("Probe", func(t *testing.T) {
		report, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{Thorough: !testing.Short()})
		t.Logf("%+v", report)
		if err != nil || checksFailed(report) != "" {
			t.Errorf("Probe = %v, failed %q, want success", err, checksFailed(report))
		}
		if left, err := b.List(t.Context(), "probe/", "", 10); err != nil || len(left) > 0 {
			t.Errorf("Probe left %v, %v", left, err)
		}
	})
}

// Large files are uploaded and copied in parts; a file that does not match its checksum is not stored.
func TestParts(t *testing.T) {
	t.Parallel()
	server := buckettest.Versitygw(t)
	b := server.Bucket("")
	b.SetPartSize(5 << 20) // the least that S3 allows
	content := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	content = append(content, "rest"...)
	sum := sha256.Sum256(content)
	if err := b.Put(t.Context(), "parts", bytes.NewReader(content), int64(len(content)), sum); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(server.Dir, "bucket", "parts"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := b.Copy(t.Context(), "parts", "copied", int64(len(content))); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"parts", "copied"} {
		r, info, err := b.Open(t.Context(), key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if isNew := time.Since(info.Modified) < time.Minute; isNew != (key == "copied") {
			t.Errorf("%s was modified at %v, want that only the copy is new", key, info.Modified)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, content) || info.Size != int64(len(content)) {
			t.Errorf("read %d bytes of %d of %s, %v, want %d", len(got), info.Size, key, err, len(content))
		}
	}
	content[3<<20] ^= 1
	if err := b.Put(t.Context(), "damaged", bytes.NewReader(content), int64(len(content)), sum); !fault.Is(err,
		fault.Corrupt) {
		t.Errorf("Put with another checksum = %v, want an error of kind Corrupt", err)
	}
	if _, _, err := b.Get(t.Context(), "damaged", 1<<30); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("Get after a damaged Put = %v, want ErrNotFound", err)
	}
}

// Packs arrive over a bad connection, a killed server is not available, and works again when it is back.
func TestBadConnection(t *testing.T) {
	t.Parallel()
	server := buckettest.Versitygw(t)
	proxy := buckettest.Toxiproxy(t, server.Address)
	b := proxy.Bucket(server, "")
	content := bytes.Repeat([]byte("pack"), 250_000)
	sum := sha256.Sum256(content)
	proxy.Add("up", "limit_data", "upstream", .4, map[string]any{"bytes": 100_000})
	proxy.Add("down", "reset_peer", "downstream", .2, map[string]any{"timeout": 0})
	for i := range 5 {
		key := fmt.Sprint("pack-", i)
		if err := b.Put(t.Context(), key, bytes.NewReader(content), int64(len(content)), sum); err != nil {
			t.Errorf("Put = %v, want success after retries", err)
		}
	}
	proxy.Remove("up")
	proxy.Remove("down")
	for i := range 5 {
		if got, _, err := b.Get(t.Context(), fmt.Sprint("pack-", i), 1<<20); err != nil || !bytes.Equal(got, content) {
			t.Errorf("Get has %d bytes, %v, want %d", len(got), err, len(content))
		}
	}
	server.Kill()
	if _, _, err := b.Get(t.Context(), "pack-0", 1<<20); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Get from a killed server = %v, want an error of kind Unavailable", err)
	}
	server.Start()
	if _, _, err := b.Get(t.Context(), "pack-0", 1<<20); err != nil {
		t.Errorf("Get after the server is back = %v", err)
	}
}

// MinIO is the second implementation. make test-all installs it.
func TestMinIO(t *testing.T) {
	t.Parallel()
	b := buckettest.MinIO(t).Bucket("a/prefix")
	buckettest.Suite(t, b)
	testProbe(t, b)
}
