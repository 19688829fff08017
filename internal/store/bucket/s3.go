package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	readTries       = 3                // of Get, Open, List and Delete
	putTries        = 10               // of each request of Put and Copy, about 4 s
	smallTimeout    = 20 * time.Second // of operations on small objects, with all tries
	deletesParallel = 16
)

// Options configure New.
type Options struct {
	// URL is s3://BUCKET/PREFIX. The prefix may be empty.
	URL string
	// Endpoint is the address of the S3 server, such as https://minio.example.com:9000. Empty means AWS_ENDPOINT_URL_S3 or
	// AWS_ENDPOINT_URL. If they are empty too, it is Amazon S3.
	Endpoint string
	// Region is the region of the bucket. Empty means AWS_REGION or AWS_DEFAULT_REGION. If they are empty too, it is
	// us-east-1 for an Endpoint, and Amazon S3 is asked for the bucket's region.
	Region string
	// PathStyle puts the bucket into the path of URLs instead of the host name. It is always so with an Endpoint outside
	// of Amazon and Google.
	PathStyle bool
	// CredentialsFile is an AWS shared credentials file, read again when it changes. Empty means the first source that
	// is configured: the environment (AWS_ACCESS_KEY_ID), a web identity or container role, the shared credentials
	// file of AWS. Without any of them, it means the role of the machine.
	CredentialsFile string
	// Profile is the section of the credentials file. Empty means AWS_PROFILE, or "default".
	Profile string
	// Metrics may be nil.
	Metrics *Metrics
}

// S3 is a Bucket on an S3 server.
type S3 struct {
	once, reads, puts *minio.Core // by the number of tries
	transport         *transport
	credentials       *provider
	bucket, prefix    string // the prefix is empty or ends in "/"
	endpoint          string
	partSize          int64
}

// New returns the bucket of a URL. It does not connect.
func New(o Options) (*S3, error) {
	name, prefix, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	host, secure := "s3.amazonaws.com", true
	from := "store endpoint"
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if value := os.Getenv(name); o.Endpoint == "" && value != "" {
			o.Endpoint, from = value, name
		}
	}
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			return nil, fault.New(fault.Invalid,
				"%s %q: want the address of an S3 server, such as https://s3.example.com", from, o.Endpoint)
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	s := &S3{
		transport: newTransport(o.Metrics), credentials: newProvider(o.CredentialsFile, o.Profile), bucket: name,
		prefix: prefix, endpoint: host, partSize: 64 << 20,
	}
	options := minio.Options{
		Creds: credentials.New(s.credentials), Secure: secure, Transport: s.transport, Region: region(o),
	}
	if o.PathStyle {
		options.BucketLookup = minio.BucketLookupPath
	}
	for _, c := range []struct {
		client **minio.Core
		tries  int
	}{{&s.once, 1}, {&s.reads, readTries}, {&s.puts, putTries}} {
		options.MaxRetries = c.tries
		if *c.client, err = minio.NewCore(host, &options); err != nil {
			return nil, fault.Wrap(fault.Invalid, fmt.Sprintf("store endpoint %q", o.Endpoint), err)
		}
	}
	return s, nil
}

// parseURL returns the name of the bucket and the prefix of keys.
func parseURL(text string) (name, prefix string, err error) {
	rest, ok := strings.CutPrefix(text, "s3://")
	name, prefix, _ = strings.Cut(rest, "/")
	if !ok || name == "" {
		return "", "", fault.New(fault.Invalid, "store URL %q: want s3://BUCKET/PREFIX", text)
	}
	if s3utils.CheckValidBucketNameStrict(name) != nil {
		return "", "", fault.New(fault.Invalid, "store URL %q: S3 does not permit the bucket name %q: use 3 to 63 "+
			"lower-case letters, digits, dots and hyphens", text, name)
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	if s3utils.CheckValidObjectNamePrefix(prefix) != nil || strings.ContainsAny(prefix, "?#\x00") ||
		strings.Contains("/"+prefix, "//") || strings.Contains("/"+prefix, "/../") || strings.Contains("/"+prefix, "/./") {
		return "", "", fault.New(fault.Invalid, "store URL %q: the prefix is not a plain path", text)
	}
	return name, prefix, nil
}

func region(o Options) string {
	for _, r := range []string{o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if r != "" {
			return r
		}
	}
	if o.Endpoint != "" {
		return "us-east-1"
	}
	return ""
}

// String returns the URL.
func (s *S3) String() string { return "s3://" + s.bucket + "/" + strings.TrimSuffix(s.prefix, "/") }

// Connection returns what the headers of answers reported.
func (s *S3) Connection() Connection { return s.transport.connection() }

// Create implements Bucket.
func (s *S3) Create(ctx context.Context, key string, body []byte) error {
	small, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	sum := sha256.Sum256(body)
	options := putOptions(sum)
	options.SetMatchETagExcept("*")
	_, err := s.once.PutObject(small, s.bucket, s.prefix+key, bytes.NewReader(body), int64(len(body)), "",
		hex.EncodeToString(sum[:]), options)
	return s.wrap(ctx, "create", key, err)
}

// putOptions lets the storage verify the body and keep its checksum.
func putOptions(sum [32]byte) minio.PutObjectOptions {
	return minio.PutObjectOptions{UserMetadata: map[string]string{
		"x-amz-checksum-sha256": base64.StdEncoding.EncodeToString(sum[:]),
	}}
}

// Get implements Bucket.
func (s *S3) Get(ctx context.Context, key string, limit int64) (body []byte, info Info, err error) {
	small, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	for range readTries {
		if body, info, err = s.get(small, key, limit); err == nil || small.Err() != nil || !isCut(err) {
			break
		}
	}
	return body, info, s.wrap(ctx, "get", key, err)
}

func (s *S3) get(ctx context.Context, key string, limit int64) ([]byte, Info, error) {
	r, object, _, err := s.reads.GetObject(ctx, s.bucket, s.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, Info{}, err
	}
	defer r.Close()
	info := Info{Key: key, Size: object.Size, Modified: object.LastModified}
	if info.Size > limit {
		return nil, info, corruptError{fmt.Sprintf("it has %d bytes, more than the limit of %d", info.Size, limit)}
	}
	body := make([]byte, max(info.Size, 0))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, info, cutError{err}
	}
	return body, info, nil
}

// Open implements Bucket.
func (s *S3) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Info, error) {
	if length == 0 {
		return http.NoBody, Info{Key: key}, nil
	}
	r, info, err := s.open(ctx, key, offset, length)
	return r, info, s.wrap(ctx, "open", key, err)
}

func (s *S3) open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Info, error) {
	var options minio.GetObjectOptions
	isRange := offset > 0 || length > 0
	switch {
	case length > 0:
		options.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	case isRange:
		options.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	r, object, header, err := s.reads.GetObject(ctx, s.bucket, s.prefix+key, options)
	if err != nil {
		return nil, Info{}, err
	}
	info := Info{Key: key, Size: object.Size, Modified: object.LastModified}
	if isRange {
		content := header.Get("Content-Range")
		rest, ok := strings.CutPrefix(content, fmt.Sprintf("bytes %d-", offset))
		_, total, _ := strings.Cut(rest, "/")
		size, err := strconv.ParseInt(total, 10, 64)
		if !ok || err != nil {
			_ = r.Close()
			return nil, Info{}, corruptError{fmt.Sprintf("the answer to a range from %d has Content-Range %q", offset, content)}
		}
		info.Size = size
		if length > 0 && object.Size != length {
			_ = r.Close()
			return nil, info, corruptError{fmt.Sprintf("it has %d bytes, and at least %d were expected", size, offset+length)}
		}
	}
	return &body{ReadCloser: r, s: s, ctx: ctx, key: key}, info, nil
}

// body gives errors of a transfer their detail.
type body struct {
	io.ReadCloser
	s   *S3
	ctx context.Context
	key string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.s.wrap(b.ctx, "open", b.key, cutError{err})
	}
	return n, err
}

// Put implements Bucket.
func (s *S3) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	if size > s.partSize {
		return s.wrap(ctx, "put", key, s.putParts(ctx, key, body, size, sum))
	}
	return s.wrap(ctx, "put", key, repeat(ctx, func() error {
		_, err := s.puts.PutObject(ctx, s.bucket, s.prefix+key, io.NewSectionReader(body, 0, size), size, "",
			hex.EncodeToString(sum[:]), putOptions(sum))
		return err
	}))
}

// Copy implements Bucket. Each request copies at most a part, so that the connection does not count as stalled.
func (s *S3) Copy(ctx context.Context, from, to string, size int64) error {
	if size > s.partSize {
		return s.wrap(ctx, "copy", from, s.copyParts(ctx, from, to, size))
	}
	return s.wrap(ctx, "copy", from, repeat(ctx, func() error {
		copied, err := s.puts.CopyObject(ctx, s.bucket, s.prefix+from, s.bucket, s.prefix+to, nil, minio.CopySrcOptions{},
			minio.PutObjectOptions{})
		if err == nil && copied.ETag == "" {
			err = errors.New("the answer has the status 200 and an error") // Amazon S3 may find an error after the status
		}
		return err
	}))
}

// conflictTries is how often a request is made that gets 409, about 6 s.
const conflictTries = 6

var conflicts = retry.Policy{First: 250 * time.Millisecond, Max: 4 * time.Second}

// repeat repeats an unconditional request that gets 409 OperationAborted: another request for its key is running. The
// client library does not repeat it.
func repeat(ctx context.Context, request func() error) error {
	for try := 1; ; try++ {
		err := request()
		if try == conflictTries || minio.ToErrorResponse(err).StatusCode != http.StatusConflict {
			return err
		}
		if conflicts.Wait(ctx, try, 0) != nil {
			return err
		}
	}
}

// List implements Bucket.
func (s *S3) List(ctx context.Context, prefix, after string, limit int) ([]Info, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	options := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: min(limit, 1000)}
	if after != "" {
		options.StartAfter = s.prefix + after
	}
	var list []Info
	if limit <= 0 {
		return nil, nil
	}
	for object := range s.reads.ListObjectsIter(inner, s.bucket, options) {
		if object.Err != nil {
			return nil, s.wrap(ctx, "list", prefix, object.Err)
		}
		key := strings.TrimPrefix(object.Key, s.prefix)
		list = append(list, Info{Key: key, Size: object.Size, Modified: object.LastModified})
		if len(list) == limit {
			return list, nil
		}
	}
	return list, s.wrap(ctx, "list", prefix, ctx.Err())
}

// Delete implements Bucket. It deletes one object for each request, since some servers do not have the request for
// several, and deletions are free of charge.
func (s *S3) Delete(ctx context.Context, keys ...string) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(deletesParallel)
	for _, key := range keys {
		group.Go(func() error {
			small, cancel := context.WithTimeout(inner, smallTimeout)
			defer cancel()
			err := repeat(small, func() error {
				return s.reads.RemoveObject(small, s.bucket, s.prefix+key, minio.RemoveObjectOptions{})
			})
			if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
				return nil
			}
			return s.wrap(inner, "delete", key, err)
		})
	}
	return group.Wait()
}
