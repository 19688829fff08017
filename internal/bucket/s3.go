package bucket

import (
	"errors"

	"github.com/minio/minio-go/v7"
)

// Options configure New.
type Options struct {
	// URL is s3://BUCKET/PREFIX. The prefix may be empty.
	URL string
	// Endpoint is the address of the S3 server, such as https://minio.example.com:9000. Empty means Amazon S3.
	Endpoint string
	// Region is the region of the bucket. Empty means AWS_REGION, AWS_DEFAULT_REGION, or for other servers than Amazon
	// S3, us-east-1.
	Region string
	// PathStyle puts the bucket into the path of URLs instead of the host name. It is always so if Endpoint is an IP
	// address.
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
	client *minio.Core
}

// New returns the bucket of a URL. It does not connect.
func New(Options) (*S3, error) { return nil, errors.New("not implemented") }
