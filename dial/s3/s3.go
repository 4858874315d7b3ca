// Package s3 makes clients of S3 and of stores that speak its protocol, for
// checkpoint stores and connectors alike: URLs, credentials, and what the
// answers to conditional requests mean.
package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Config is a parsed URL,
//
//	s3://[key id:secret@]bucket[/prefix][?endpoint=https://host:port][&region=name]
//
// Where the URL is silent the SDK's standard chain decides: environment, shared
// configuration, the role of the machine. The secret is percent-encoded, as its
// slashes would end the authority of a URL.
type Config struct {
	Bucket string
	// Prefix of the objects, without slashes at its ends; may be empty.
	Prefix string

	endpoint, region string
	keyID, secret    string
}

// connectTimeout bounds one attempt to connect.
const connectTimeout = 5 * time.Second

// regionOfEndpoint stands for the region of a named endpoint when nobody gives
// one: signatures contain a region, and most stores beside AWS accept this one.
const regionOfEndpoint = "us-east-1"

// Parse reads an s3:// URL. Its errors do not show the URL, which may hold a
// secret (invariant 11).
func Parse(rawURL string) (Config, error) {
	if !strings.HasPrefix(rawURL, "s3://") {
		return Config{}, errors.New("s3: not an s3:// URL")
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return Config{}, errors.New("s3: URL cannot be read; is the secret in it percent-encoded?")
	}
	if u.Hostname() == "" || u.Port() != "" || u.Fragment != "" {
		return Config{}, errors.New("s3: the URL must be s3://bucket/prefix; a server goes into ?endpoint=")
	}
	c := Config{Bucket: u.Hostname(), Prefix: strings.Trim(u.Path, "/")}
	if u.User != nil {
		c.keyID = u.User.Username()
		c.secret, _ = u.User.Password()
		if c.keyID == "" || c.secret == "" {
			return Config{}, errors.New("s3: credentials in the URL must be both, key id and secret")
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Config{}, errors.New("s3: the query of the URL cannot be read")
	}
	for name, values := range query {
		if len(values) != 1 || values[0] == "" {
			return Config{}, fmt.Errorf("s3: parameter %q of the URL needs one value", name)
		}
		switch name {
		case "endpoint":
			if c.endpoint, err = endpoint(values[0]); err != nil {
				return Config{}, err
			}
		case "region":
			c.region = values[0]
		default:
			return Config{}, fmt.Errorf("s3: the URL has an unknown parameter %q; endpoint and region are known", name)
		}
	}
	return c, nil
}

// endpoint checks an endpoint and drops what would make two spellings of one.
func endpoint(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", errors.New("s3: the endpoint must be http://host:port or https://host:port")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("s3: the endpoint holds neither credentials nor parameters")
	}
	return u.Scheme + "://" + strings.ToLower(u.Host) + strings.TrimSuffix(u.Path, "/"), nil
}

// Client is an SDK client beside the bucket and prefix it was made for. Safe for
// concurrent use.
type Client struct {
	API *s3.Client
	// Bucket and Prefix are those of the URL.
	Bucket, Prefix string

	http *http.Client
}

// Open makes a client. It makes no request, unless the machine's own credentials
// have to be asked for. The caller closes it.
func (c Config) Open(ctx context.Context) (*Client, error) {
	options := []func(*config.LoadOptions) error{
		// Records have checksums of their own, and every store knows requests
		// without the SDK's.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if c.region != "" {
		options = append(options, config.WithRegion(c.region))
	}
	if c.keyID != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.keyID, c.secret, "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("s3: configuration for bucket %s: %w", c.Bucket, err)
	}
	// A transport that can be closed, with what AWS_CA_BUNDLE added to it. A
	// redirect is an answer: no request is repeated elsewhere behind our back.
	plain, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		plain = awshttp.NewBuildableClient()
	}
	transport := plain.GetTransport()
	transport.DialContext = (&net.Dialer{Timeout: connectTimeout, KeepAlive: 10 * time.Second}).DialContext
	hc := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	cfg.HTTPClient = hc
	api := s3.NewFromConfig(cfg, func(o *s3.Options) {
		if c.endpoint != "" {
			o.BaseEndpoint = aws.String(c.endpoint)
		}
		if o.BaseEndpoint != nil {
			o.UsePathStyle = true
			if o.Region == "" {
				o.Region = regionOfEndpoint
			}
		}
	})
	if api.Options().Region == "" {
		return nil, fmt.Errorf("s3: no region for bucket %s: add ?region= to the URL, or set AWS_REGION", c.Bucket)
	}
	return &Client{API: api, Bucket: c.Bucket, Prefix: c.Prefix, http: hc}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Address names bucket and prefix, and the endpoint where it is not AWS's own,
// without secrets: "s3://bucket/prefix?endpoint=http://127.0.0.1:9000".
func (c *Client) Address() string {
	s := "s3://" + c.Bucket
	if c.Prefix != "" {
		s += "/" + c.Prefix
	}
	if e := c.API.Options().BaseEndpoint; e != nil {
		// The environment may name one with a password.
		if u, err := url.Parse(*e); err == nil {
			s += "?endpoint=" + u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/")
		}
	}
	return s
}

// Once makes a request once. The SDK repeats what it believes has failed; a
// conditional PUT that had succeeded would meet its own object and look like one
// that lost.
func Once(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

// Status is the HTTP status in an error, 0 if the store did not answer.
func Status(err error) int {
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) && r.Response != nil && r.Response.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// Code is the code of an error that the store answered with, "NoSuchBucket", or "".
func Code(err error) string {
	var api smithy.APIError
	if Status(err) != 0 && errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}
