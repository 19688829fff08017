package browse

import (
	"net/http/httptest"
	"testing"
)

// askedHost has the host of the request as that of the server.
type askedHost struct {
	Visitor
	host string
}

func (v askedHost) Address(path string) string { return "https://" + v.host + "/" + path }

// TestKeysOfSamePages: fields that a page does not have do not make another page of it. Otherwise a client could have
// pages made again at will, and fill the cache with copies.
func TestKeysOfSamePages(t *testing.T) {
	t.Parallel()
	key := func(address string) string {
		t.Helper()
		r := httptest.NewRequest("GET", "http://"+address, nil)
		q := &request{r: r, v: askedHost{host: r.Host}}
		if err := q.parse(); err != nil {
			t.Fatal(err)
		}
		return q.key()
	}
	for _, same := range [][2]string{
		{"h/x/-/commit/main", "h/x/-/commit/main?line=7"}, {"h/x/-/raw/main/a", "h/x/-/raw/main/a?from=7&skip=1"},
		{"h/x/-/tree/main/a", "h/x/-/tree/main/a?line=7"}, {"h/x/-/log/main", "h/x/-/log/main?from=7"},
		{"h/x/-/file/main/a", "other/x/-/file/main/a"}, {"h/x/-/log/main", "other/x/-/log/main"},
		{"h/x/-/file/main/a?line=20001", "h/x/-/file/main/a?line=40000"},
		{"h/x/-/blame/main/a?line=1", "h/x/-/blame/main/a?line=-1"},
		{"h/x/-/file/main/a?line=9999999999", "h/x/-/file/main/a?line=8888888888"},
	} {
		if a, b := key(same[0]), key(same[1]); a != b {
			t.Errorf("%s and %s have the keys %s and %s", same[0], same[1], a, b)
		}
	}
	for _, different := range [][2]string{
		{"h/x/-/file/main/a?line=20000", "h/x/-/file/main/a?line=20001"}, {"h/x/-/refs?tag=a", "h/x/-/refs?branch=a"},
		{"h/x/-/tree/main?from=a", "h/x/-/tree/main?from=b"}, {"h/x/-/feed/main", "other/x/-/feed/main"},
		{"h/x/-/log/main?author=a%26text=b", "h/x/-/log/main?author=a&text=b"},
	} {
		if key(different[0]) == key(different[1]) {
			t.Errorf("%s and %s have one key", different[0], different[1])
		}
	}
}
