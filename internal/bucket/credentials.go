package bucket

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// newProvider returns the first source of credentials that is configured; see Options.
func newProvider(file, profile string) *provider {
	_, err := os.Stat(sharedFile())
	hasShared := err == nil
	p := &provider{remedy: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a credentials file, or give the " +
		"machine a role"}
	switch {
	case file != "":
		p.Provider, p.file = &credentials.FileAWSCredentials{Filename: file, Profile: profile}, file
		p.remedy = "the file needs aws_access_key_id and aws_secret_access_key in section [default]"
	case os.Getenv("AWS_ACCESS_KEY_ID") != "":
		p.Provider = &credentials.EnvAWS{}
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "", os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "",
		os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		p.Provider = &credentials.IAM{}
	case hasShared:
		p.Provider, p.file = &credentials.FileAWSCredentials{Profile: profile}, sharedFile()
	default:
		p.Provider = &credentials.IAM{}
	}
	return p
}

// sharedFile is the place of the shared credentials file of AWS.
func sharedFile() string {
	if name := os.Getenv("AWS_SHARED_CREDENTIALS_FILE"); name != "" {
		return name
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".aws", "credentials")
}

// provider reads a credentials file again when it changes, and adds a remedy to errors. minio-go calls its methods
// under a lock.
type provider struct {
	credentials.Provider
	file     string // empty: none
	remedy   string
	hasValue bool      // the credentials were read, and the file was not changed since
	expires  bool      // they have an end
	modified time.Time // of the file when it was read
	size     int64     // the same
	checked  time.Time // when the file was compared last
}

// fileCheck is the time between checks of a credentials file.
const fileCheck = 5 * time.Second

// IsExpired reports whether the credentials have to be read again. The provider of files is not asked about keys
// without an end: it would read the file for each request.
func (p *provider) IsExpired() bool {
	if !p.hasValue || p.expires && p.Provider.IsExpired() {
		return true
	}
	if p.file == "" || time.Since(p.checked) < fileCheck {
		return false
	}
	p.checked = time.Now()
	info, err := os.Stat(p.file)
	if err == nil && (!info.ModTime().Equal(p.modified) || info.Size() != p.size) {
		p.hasValue = false // until they are read: minio-go asks more than once
	}
	return !p.hasValue // while the file is missing, the old credentials stay
}

func (p *provider) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	if info, err := os.Stat(p.file); err == nil {
		p.modified, p.size, p.checked = info.ModTime(), info.Size(), time.Now()
	}
	value, err := p.Provider.RetrieveWithCredContext(c)
	if err == nil && (value.AccessKeyID == "" || value.SecretAccessKey == "") {
		err = fmt.Errorf("an access key is empty")
	}
	p.hasValue, p.expires = err == nil, !value.Expiration.IsZero()
	if err != nil {
		return value, credentialsError{err, p.remedy}
	}
	return value, nil
}

// credentialsError means that there are no credentials.
type credentialsError struct {
	err    error
	remedy string
}

func (e credentialsError) Error() string { return "no credentials: " + e.err.Error() }
func (e credentialsError) Unwrap() error { return e.err }
