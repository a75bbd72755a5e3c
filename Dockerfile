# A server of qkv's models: docker build -t qkv . && docker run -p 8000:8000 -e QKV_API_KEY=… qkv
FROM python:3.11-slim

# First and pinned, as in the Makefile. Which build of it comes, for a CPU or a GPU, is pip's setting:
# --build-arg PIP_EXTRA_INDEX_URL=… names an index that has yours.
ARG TORCH=torch==2.13.0
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir "${TORCH}"

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[serve]"

# Nobody but the server itself runs here, and it owns nothing but its cache.
RUN useradd --system --create-home --uid 10001 qkv
USER qkv
ENV QKV_HOME=/home/qkv/.cache/qkv \
    PYTHONUNBUFFERED=1
EXPOSE 8000

HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

# Beyond this machine a key is needed: set QKV_API_KEY.
ENTRYPOINT ["qkv", "serve", "--host", "0.0.0.0", "--port", "8000"]
