"""Several machines: RabbitMQ says where a message goes, PostgreSQL who may write."""
