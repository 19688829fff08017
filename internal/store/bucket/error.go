package bucket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/packhorse-git/packhorse/internal/fault"
)

var (
	// ErrExists means that a key exists already.
	ErrExists = errors.New("the object exists already")
	// ErrNotFound means that a key does not exist.
	ErrNotFound = errors.New("the object does not exist")
	// ErrDenied means that the credentials do not permit an operation. Its kind is Unavailable and not Denied, because
	// clients of the Git server cannot do anything about it.
	ErrDenied = errors.New("the object storage denied access")
)

// Error is the detail of a failed operation, for logs and operators.
type Error struct {
	Operation string // the method of Bucket, in lower case
	Key       string // s3://BUCKET/PREFIX/KEY
	Err       error  // the problem
	Remedy    string // what an operator can do; empty if nothing is known
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Operation, e.Key, e.Err)
	if e.Remedy != "" {
		text += ": " + e.Remedy
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// corruptError describes an object that is not what it should be.
type corruptError struct{ problem string }

func (e corruptError) Error() string { return e.problem }

// cutError is a transfer that ended early.
type cutError struct{ err error }

func (e cutError) Error() string { return "the transfer was cut: " + e.err.Error() }
func (e cutError) Unwrap() error { return e.err }

func isCut(err error) bool {
	_, ok := errors.AsType[cutError](err)
	return ok
}

const (
	unavailableMessage = "the object storage is not available; try again"
	refusedMessage     = "the object storage cannot be used; the administrator has to act"
	corruptMessage     = "an object in the object storage is damaged; the administrator has to act"
)

// wrap adds kind, key and remedy to the error of an operation. ctx is the caller's context.
func (s *S3) wrap(ctx context.Context, operation, key string, err error) error {
	if err == nil {
		return nil
	}
	detail := &Error{Operation: operation, Key: "s3://" + s.bucket + "/" + s.prefix + key, Err: err}
	if cause := ctx.Err(); cause != nil {
		detail.Err = cause // the error of the library may be of an earlier try
		return detail
	}
	answer, isAnswer := errors.AsType[minio.ErrorResponse](err)
	_, isCorrupt := errors.AsType[corruptError](err)
	switch {
	case isAnswer:
		return s.answerError(detail, answer)
	case isCorrupt:
		return fault.Wrap(fault.Corrupt, corruptMessage, detail)
	}
	detail.Remedy = s.connectionRemedy(err)
	if _, ok := errors.AsType[credentialsError](err); ok || isWithoutTLS(err) {
		return &fault.Error{Kind: fault.Unavailable, Msg: refusedMessage, RetryAfter: fault.RetrySoon, Err: detail}
	}
	return unavailable(detail, fault.RetrySoon)
}

// unavailable returns the error of a request that failed. RetryMuchLater is for causes that do not end by themselves.
func unavailable(detail *Error, after time.Duration) error {
	message := unavailableMessage
	if after == fault.RetryMuchLater {
		message = refusedMessage
	}
	return &fault.Error{Kind: fault.Unavailable, Msg: message, RetryAfter: after, Err: detail}
}

// isWithoutTLS reports whether a server did not answer with TLS.
func isWithoutTLS(err error) bool {
	_, isOther := errors.AsType[tls.RecordHeaderError](err)
	return isOther || errors.Is(err, http.ErrSchemeMismatch) // an answer over HTTP
}

// connectionRemedy returns the remedy for a request without an answer.
func (s *S3) connectionRemedy(err error) string {
	if c, ok := errors.AsType[credentialsError](err); ok {
		return c.remedy
	}
	if _, ok := errors.AsType[foreignError](err); ok {
		return "check the endpoint, and the proxies between this machine and the storage"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "add its authority to the certificates that this machine trusts (SSL_CERT_FILE)"
	}
	if isWithoutTLS(err) {
		return "the server has no TLS: use http:// in the endpoint, or turn on TLS in the server"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "check the endpoint " + s.endpoint + " and the name servers of this machine"
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return "check that " + s.endpoint + " runs and can be reached from this machine"
	}
	return ""
}

// answerError translates an error answer of the storage.
func (s *S3) answerError(detail *Error, answer minio.ErrorResponse) error {
	detail.Err = fmt.Errorf("%s (%d %s)", strings.TrimSpace(answer.Error()), answer.StatusCode, answer.Code)
	if answer.RequestID != "" {
		detail.Err = fmt.Errorf("%w, request %s", detail.Err, answer.RequestID)
	}
	switch answer.Code {
	case minio.NoSuchKey:
		detail.Err = ErrNotFound
		return fault.Wrap(fault.NotFound, "an object does not exist in the object storage", detail)
	case minio.PreconditionFailed:
		detail.Err = ErrExists
		return fault.Wrap(fault.Exists, "an object exists already in the object storage", detail)
	case "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "BadDigest", "InvalidRange":
		return fault.Wrap(fault.Corrupt, corruptMessage, detail)
	case minio.NoSuchBucket:
		detail.Remedy = "create the bucket, or correct the URL of the store"
		return unavailable(detail, fault.RetryMuchLater)
	case "RequestTimeTooSkewed":
		detail.Remedy = fmt.Sprintf("the clock of this machine is %s that of the storage, and signatures need clocks "+
			"within 15 minutes: check the time service (NTP) of both", difference(s.Connection().ClockSkew))
		return unavailable(detail, fault.RetryMuchLater)
	case "AuthorizationHeaderMalformed", "InvalidRegion", "PermanentRedirect", "TemporaryRedirect",
		"IllegalLocationConstraint":
		return unavailable(s.withRegion(detail, answer), fault.RetryMuchLater)
	}
	switch answer.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return unavailable(s.withRegion(detail, answer), fault.RetryMuchLater)
	case http.StatusForbidden, http.StatusUnauthorized:
		detail.Err = fmt.Errorf("%w: %w", ErrDenied, detail.Err)
		detail.Remedy = permissionRemedy(detail.Operation, answer.Code)
		return unavailable(detail, fault.RetryMuchLater)
	case http.StatusConflict: // Amazon S3: another request for this key was running; its outcome may be either
		return unavailable(detail, fault.RetrySoon)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		detail.Remedy = "the storage throttles requests or is overloaded; Packhorse slows down and tries again"
		return unavailable(detail, fault.RetryLater)
	case http.StatusNotImplemented:
		if detail.Operation == "create" {
			detail.Remedy = "this storage does not support conditional writes (If-None-Match: *); use one that does"
		}
		return unavailable(detail, fault.RetryMuchLater)
	case http.StatusPreconditionFailed:
		detail.Err = fmt.Errorf("%w: %w", ErrExists, detail.Err)
		return fault.Wrap(fault.Exists, "an object exists already in the object storage", detail)
	case http.StatusNotFound: // of something else than a key
		detail.Remedy = "check the URL, the endpoint and the credentials of the store"
		return unavailable(detail, fault.RetryMuchLater)
	}
	return unavailable(detail, fault.RetrySoon)
}

// difference describes the clock of this machine by that of the storage minus ours.
func difference(skew time.Duration) string {
	if skew < 0 {
		return (-skew).Round(time.Minute).String() + " ahead of"
	}
	return skew.Round(time.Minute).String() + " behind"
}

// withRegion adds the remedy for a request that went to another region than the bucket's.
func (s *S3) withRegion(detail *Error, answer minio.ErrorResponse) *Error {
	detail.Remedy = "set the region and the endpoint of the store to those of the bucket"
	if answer.Region != "" {
		detail.Remedy = fmt.Sprintf("set the region of the store to %q", answer.Region)
	}
	return detail
}

// permissionRemedy returns the remedy for missing permissions. Amazon S3 answers 403 instead of 404 for a missing key
// if the credentials may not list the bucket.
func permissionRemedy(operation, code string) string {
	switch code {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken":
		return "check the credentials of the store"
	}
	switch operation {
	case "get", "open":
		return "grant s3:GetObject on the objects and s3:ListBucket on the bucket; without s3:ListBucket, the storage " +
			"answers 403 for keys that do not exist"
	case "list":
		return "grant s3:ListBucket on the bucket"
	case "copy":
		return "grant s3:GetObject, s3:PutObject and s3:AbortMultipartUpload on the objects"
	case "delete":
		return "grant s3:DeleteObject on the objects"
	}
	return "grant s3:PutObject and s3:AbortMultipartUpload on the objects"
}
