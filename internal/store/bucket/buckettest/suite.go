package buckettest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Suite tests the contract of bucket.Bucket. The bucket is empty.
func Suite(t *testing.T, b bucket.Bucket) {
	t.Run("Create", func(t *testing.T) { testCreate(t, b) })
	t.Run("Race", func(t *testing.T) { testRace(t, b) })
	t.Run("Read", func(t *testing.T) { testRead(t, b) })
	t.Run("Put", func(t *testing.T) { testPut(t, b) })
	t.Run("Copy", func(t *testing.T) { testCopy(t, b) })
	t.Run("List", func(t *testing.T) { testList(t, b) })
	t.Run("Delete", func(t *testing.T) { testDelete(t, b) })
}

func put(t *testing.T, b bucket.Bucket, key, body string) {
	t.Helper()
	err := b.Put(t.Context(), key, bytes.NewReader([]byte(body)), int64(len(body)), sha256.Sum256([]byte(body)))
	if err != nil {
		t.Fatalf("Put(%q) = %v", key, err)
	}
}

func wantBody(t *testing.T, b bucket.Bucket, key, want string) {
	t.Helper()
	got, info, err := b.Get(t.Context(), key, 1<<20)
	if err != nil || string(got) != want || info.Key != key || info.Size != int64(len(want)) {
		t.Errorf("Get(%q) = %q, %+v, %v, want %q", key, got, info, err, want)
	}
	if age := time.Since(info.Modified).Abs(); age > time.Minute {
		t.Errorf("Get(%q) was modified %v ago, want now", key, age)
	}
}

func testCreate(t *testing.T, b bucket.Bucket) {
	for _, key := range []string{"create/plain", "create/a b+c&d=é%2F~'", "create/deep/er/key.json"} {
		if err := b.Create(t.Context(), key, []byte("first")); err != nil {
			t.Fatalf("Create(%q) = %v", key, err)
		}
		err := b.Create(t.Context(), key, []byte("second"))
		if !errors.Is(err, bucket.ErrExists) || !fault.Is(err, fault.Exists) {
			t.Errorf("second Create(%q) = %v, want ErrExists", key, err)
		}
		wantBody(t, b, key, "first")
	}
	if err := b.Create(t.Context(), "create/empty", nil); err != nil {
		t.Errorf("Create of an empty object = %v", err)
	}
	wantBody(t, b, "create/empty", "")
}

func testRace(t *testing.T, b bucket.Bucket) {
	const writers = 20
	var group sync.WaitGroup
	results := make([]error, writers)
	for i := range writers {
		group.Go(func() { results[i] = b.Create(t.Context(), "race", fmt.Append(nil, i)) })
	}
	group.Wait()
	winner := slices.Index(results, nil)
	if winner < 0 {
		t.Fatalf("no create won: %v", results)
	}
	for i, err := range results {
		if i != winner && !errors.Is(err, bucket.ErrExists) {
			t.Errorf("create %d = %v, want ErrExists", i, err)
		}
	}
	wantBody(t, b, "race", fmt.Sprint(winner))
}

func testRead(t *testing.T, b bucket.Bucket) {
	content := string(pattern(100_000))
	put(t, b, "read", content)
	if _, _, err := b.Get(t.Context(), "read", 99_999); !fault.Is(err, fault.Corrupt) {
		t.Errorf("Get with a limit below the size = %v, want an error of kind Corrupt", err)
	}
	wantBody(t, b, "read", content)
	for _, key := range []string{"missing", "missing/deep", "read/below"} {
		if _, _, err := b.Get(t.Context(), key, 1); !errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("Get(%q) = %v, want ErrNotFound", key, err)
		}
		if _, _, err := b.Open(t.Context(), key, 1, 1); !errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("Open(%q) = %v, want ErrNotFound", key, err)
		}
	}
	for _, r := range []struct{ offset, length int64 }{
		{0, -1}, {0, 1}, {0, 100_000}, {1, -1}, {1, 99_999}, {50_000, 1000}, {99_999, 1}, {99_999, -1}, {5, 0},
	} {
		want := content[r.offset:]
		if r.length >= 0 {
			want = want[:r.length]
		}
		body, info, err := b.Open(t.Context(), "read", r.offset, r.length)
		if err != nil {
			t.Errorf("Open(%v) = %v", r, err)
			continue
		}
		got, err := io.ReadAll(body)
		_ = body.Close()
		if err != nil || string(got) != want || r.length != 0 && info.Size != 100_000 {
			t.Errorf("Open(%v) has %d bytes of %d, %v, want %d", r, len(got), info.Size, err, len(want))
		}
	}
	if r, _, err := b.Open(t.Context(), "read", 99_000, 2000); !fault.Is(err, fault.Corrupt) {
		t.Errorf("Open beyond the end = %v, %v, want an error of kind Corrupt", r, err)
	}
}

func testPut(t *testing.T, b bucket.Bucket) {
	put(t, b, "put", "content")
	put(t, b, "put", "content") // an attempt that was given up may arrive later
	wantBody(t, b, "put", "content")
	put(t, b, "put-empty", "")
	wantBody(t, b, "put-empty", "")
	if err := b.Create(t.Context(), "put", []byte("other")); !errors.Is(err, bucket.ErrExists) {
		t.Errorf("Create after Put = %v, want ErrExists", err)
	}
	err := b.Put(t.Context(), "put-damaged", bytes.NewReader([]byte("damaged")), 7, sha256.Sum256([]byte("content")))
	if !fault.Is(err, fault.Corrupt) {
		t.Errorf("Put with another checksum = %v, want an error of kind Corrupt", err)
	}
	if _, _, err := b.Get(t.Context(), "put-damaged", 100); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("Get after a damaged Put = %v, want ErrNotFound", err)
	}
}

func testCopy(t *testing.T, b bucket.Bucket) {
	put(t, b, "copy/from", "content")
	put(t, b, "copy/to-b", "other")
	for _, to := range []string{"copy/to-a", "copy/to-b"} {
		if err := b.Copy(t.Context(), "copy/from", to, 7); err != nil {
			t.Errorf("Copy(%q) = %v", to, err)
		}
		wantBody(t, b, to, "content")
	}
	wantBody(t, b, "copy/from", "content")
	put(t, b, "copy/empty", "")
	if err := b.Copy(t.Context(), "copy/empty", "copy/to-empty", 0); err != nil {
		t.Errorf("Copy of an empty object = %v", err)
	}
	wantBody(t, b, "copy/to-empty", "")
	for _, size := range []int64{7, 1 << 30} {
		if err := b.Copy(t.Context(), "copy/missing", "copy/to-c", size); !errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("Copy of a missing object of %d bytes = %v, want ErrNotFound", size, err)
		}
	}
	if _, _, err := b.Get(t.Context(), "copy/to-c", 100); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("Get after the Copy of a missing object = %v, want ErrNotFound", err)
	}
}

func testList(t *testing.T, b bucket.Bucket) {
	var want []string
	for i := range 12 {
		key := fmt.Sprintf("list/%016x", 1<<62-i)
		put(t, b, key, "x")
		want = append(want, key)
	}
	put(t, b, "list-other", "x")
	slices.Sort(want)
	keys := func(prefix, after string, limit int) []string {
		list, err := b.List(t.Context(), prefix, after, limit)
		if err != nil {
			t.Errorf("List(%q, %q, %d) = %v", prefix, after, limit, err)
		}
		var keys []string
		for _, info := range list {
			if info.Size != 1 || info.Modified.IsZero() {
				t.Errorf("List(%q) has %+v", prefix, info)
			}
			keys = append(keys, info.Key)
		}
		return keys
	}
	for _, test := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"list/", "", 1000, want},
		{"list/", "", 1, want[:1]},
		{"list/", want[0], 3, want[1:4]},
		{"list/", want[11], 3, nil},
		{"list/3fff", want[4], 3, want[5:8]},
		{"list-", "", 3, []string{"list-other"}},
		{"nothing/", "", 3, nil},
	} {
		if got := keys(test.prefix, test.after, test.limit); !slices.Equal(got, test.want) {
			t.Errorf("List(%q, %q, %d) = %q, want %q", test.prefix, test.after, test.limit, got, test.want)
		}
	}
}

func testDelete(t *testing.T, b bucket.Bucket) {
	put(t, b, "delete/a", "x")
	put(t, b, "delete/b", "x")
	if err := b.Delete(t.Context(), "delete/a", "delete/missing", "delete/b"); err != nil {
		t.Errorf("Delete = %v", err)
	}
	if _, _, err := b.Get(t.Context(), "delete/a", 100); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("Get after Delete = %v, want ErrNotFound", err)
	}
	if list, err := b.List(t.Context(), "delete/", "", 10); err != nil || len(list) > 0 {
		t.Errorf("List after Delete = %v, %v, want nothing", list, err)
	}
	if err := b.Create(t.Context(), "delete/a", []byte("again")); err != nil {
		t.Errorf("Create after Delete = %v", err)
	}
}

// pattern returns bytes that differ at each offset.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 ^ i>>8 ^ i>>16)
	}
	return b
}
